"""Deviations of a subject from its layer in the use of positions, found by changing or permuting the inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray
from attncheck._lib.text import listed
from attncheck.checks.answers import Answer, Pair, Respond
from attncheck.checks.declared import AFTER, IN_OUTPUTS, SCORES, WEIGHTS_OR_VALUES
from attncheck.checks.structure import permutation, random_by_position, reordered
from attncheck.evidence import plot_data
from attncheck.records.explanation import Explanation, exact

# Positions are changed one after another if there are at most _MOST, and exchanged in pairs if there are at most
# _EXCHANGED.
_MOST, _EXCHANGED = 16, 6


def positions(pair: Pair) -> Iterator[Explanation]:
    """Find wrong dependence on positions, by changing the inputs at one position after another."""
    s = pair.layer.seq_len
    if s > _MOST:
        return
    (outputs, scores), (declared, of_scores) = pair.each(partial(dependence, pair))
    if scores.size and (wrong := np.argwhere((scores != of_scores).any(axis=-1))).size:
        i, j = wrong[0]
        text = f"the score of query {i} and key {j} changes with the inputs at {positions_text(scores[i, j])}"
        yield exact(SCORES, f"{text}; declared {positions_text(of_scores[i, j])}{_likewise(len(wrong))}")
    if pair.layer.map.traits.may_vanish:  # which weights are 0 depends on the draws
        possible = pair.layer.visible | np.eye(s, dtype=bool)
        declared = np.where((outputs & ~possible).any(axis=1, keepdims=True), possible, outputs)
    rows = np.flatnonzero((outputs != declared).any(axis=1))
    if rows.size:
        i = rows[0]
        text = f"the output at {i} depends on the inputs at {positions_text(outputs[i])}"
        text = f"{text}; declared {positions_text(declared[i])}"
        plot = plot_data.positions(outputs, declared, "input", "Inputs that change the outputs")
        yield exact(WEIGHTS_OR_VALUES, text + _likewise(len(rows)), plot)


def dependence(pair: Pair, respond: Respond, baseline: Answer) -> tuple[BoolArray, BoolArray]:
    """Return which outputs, (s, s), and scores, (s, s, s), change with the input at each position.

    The last axis is the position of the changed input; s is the number of positions. `respond` is the simulator, and
    `baseline` its answer to the unchanged inputs.
    """
    outputs, scores = [], []
    for j in range(pair.layer.seq_len):
        of_outputs, of_scores = baseline.changes(respond(pair.fresh_at(np.s_[:, j])))
        outputs.append(of_outputs.any(axis=0))
        scores.append(of_scores.any(axis=(0, 1)))
    return np.stack(outputs, axis=-1), np.stack(scores, axis=-1)


def permuted(pair: Pair) -> Iterator[Explanation]:
    """Find wrong dependence on the order of the inputs.

    All positions are permuted first, then pairs of positions are exchanged to tell which position differs.
    """
    s = pair.layer.seq_len
    (outputs, scores), (declared, of_scores) = pair.each(partial(displacement, pair, permutation(s)))
    if scores.any() and not of_scores.any():
        yield exact(SCORES, "they are not permuted with the inputs, as they should be without declared positions")
    elif outputs.any() and not declared.any():
        yield exact(stage_of_outputs(pair), _text_of_outputs(pair))


def _text_of_outputs(pair: Pair) -> str:
    """Return text on outputs that are not permuted with the inputs, as specific as the answers allow."""
    follow = "outputs do not follow the inputs to other positions"
    if random_by_position(pair):
        return f"{follow}, differently in each draw: is there dropout, or other randomness by position?"
    where = "; scores do" if pair.known else "; return scores to see where the fault begins"
    return _different(pair) or f"{follow}{where}"


def stage_of_outputs(pair: Pair) -> str:
    """Return the stage at which outputs are wrong: after the scores, if the subject returns scores."""
    return AFTER if pair.known else IN_OUTPUTS


def displacement(
    pair: Pair, order: NDArray[np.intp], respond: Respond, baseline: Answer
) -> tuple[BoolArray, BoolArray]:
    """Return which outputs, (s,), and scores, (s, s), are not permuted like the inputs if these are put in `order`.

    `respond` is the simulator, and `baseline` its answer to the inputs in their original order.
    """
    outputs, scores = baseline.changes(reordered(pair, order, respond))
    return np.asarray(outputs.any(axis=0)), np.asarray(scores.any(axis=(0, 1)))


def _different(pair: Pair) -> str:
    """Return text on the position that is computed differently from all others, or "" unless there is exactly one."""
    s = pair.layer.seq_len
    if not 2 < s <= _EXCHANGED:
        return ""
    wrong = {}
    for one, two in itertools.combinations(range(s), 2):
        order = np.arange(s)
        order[[one, two]] = two, one
        if (outputs := displacement(pair, order, pair.subject, pair.usual[0])[0]).any():
            wrong[one, two] = outputs
    common = set(range(s)).intersection(*wrong)
    if len(common) != 1:
        return ""
    (position,) = common
    remaining = [outputs[[at for at in range(s) if at not in exchanged]] for exchanged, outputs in wrong.items()]
    if np.concatenate(remaining).any():
        return f"the input at position {position} is used differently from those at other positions"
    return f"the output at position {position} is computed differently from those at other positions"


def positions_text(chosen: BoolArray) -> str:
    """Return the indices of True as text.

    Examples
    --------
    >>> positions_text(np.array([True, True, True, False, True])), positions_text(np.zeros(2, dtype=bool))
    ('0 to 2 and 4', 'none')
    """
    indices = np.flatnonzero(chosen)
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    ranges = [f"{run[0]} to {run[-1]}" if len(run) > 2 else listed(map(str, run)) for run in runs if len(run)]
    return listed(ranges) if ranges else "none"


def _likewise(count: int) -> str:
    return f"; {count - 1} other{'s are' if count > 2 else ' is'} wrong too" if count > 1 else ""
