"""Checks that outputs and scores depend on inputs, positions and draws as the layer declares.

A simulator with the signature (layer, inputs, rng) has the same weights in each call with an equal generator. So calls
with changed inputs can be compared exactly, with each other and with calls of a correct simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.answers import CLEAR, Answer, Pair, Respond
from attncheck.checks.check import Alternative, Check, NotExaminedError, Setting, refusals_not_examined
from attncheck.checks.claims import NO_INPUTS, ONE_NEURON, TWO_VALUES
from attncheck.checks.reference import PER_ANSWER, Reference
from attncheck.evidence.families import Count
from attncheck.layers.parts import refusing
from attncheck.layers.parts.scores import small_with_inputs
from attncheck.layers.requirement import ANY, Requirement
from attncheck.layers.requirements import SEVERAL_NEURONS, SEVERAL_POSITIONS

# Further factor on inputs that make the scores of a correct simulator small. Scores of narrow layers have heavy tails,
# so those of the subject may be thousands of times larger.
_SMALLER = 1e-2
# Size from which every number in single precision is an integer.
_LARGE = 2.0**24
_Compare = Callable[[Pair], BoolArray]
_Read = Callable[[Answer], FloatArray | None]


def _repeats(pair: Pair) -> BoolArray:
    """Return which draws change when a call is repeated, at once or after a call with other inputs."""
    before, again = pair.usual[0], pair.subject(pair.inputs)
    pair.subject(pair.fresh)
    return _any(*before.changes(again, CLEAR)) | _any(*before.changes(pair.subject(pair.inputs), CLEAR))


def _draws(pair: Pair) -> BoolArray:
    """Return which draws of odd index change if the inputs of draws of even index are replaced."""
    outputs, scores = pair.usual[0].changes(pair.subject(pair.fresh_at(np.s_[::2])), pair.tolerance)
    return _any(outputs[1::2], scores[1::2])


def _weights(pair: Pair) -> BoolArray:
    """Return which draws have the same nonzero outputs as another draw if all draws get the first draw's inputs.

    Outputs are compared in single precision, because equal weights may give outputs that differ by rounding. One number
    coincides in two draws with probability 10⁻⁸; several neurons, with separate columns of W_O, practically never do.
    """
    answer = pair.subject(np.repeat(pair.inputs[:1], len(pair.inputs), axis=0))
    if answer.outputs.shape[-1] < 2:
        raise NotExaminedError(ONE_NEURON)
    outputs = _rows(answer.outputs)
    if _decimal(outputs):
        raise NotExaminedError("outputs are rounded to decimals, which may coincide")
    _, inverse, counts = np.unique(outputs.astype(np.float32), axis=0, return_inverse=True, return_counts=True)
    return np.asarray((counts[inverse.ravel()] > 1) & outputs.any(axis=1))


def _hidden(pair: Pair) -> BoolArray:
    """Return which draws have outputs or scores that change with an input on which they must not depend.

    In each draw, the input at one position is replaced: at the last position in the first draw, at the last but one in
    the second draw, and so on.
    """
    mask, draws = pair.layer.visible, np.arange(len(pair.inputs))
    if mask.all() and not (pair.known and len(mask) > 2):
        raise NotExaminedError("the mask hides no input, and there are no scores of three or more positions")
    _require_fixed_weights(pair)
    j = (-1 - draws) % len(mask)
    outputs, scores = pair.usual[0].changes(pair.subject(pair.fresh_at((draws, j))), pair.tolerance)
    unchanged = np.arange(len(mask)) != j[:, None]
    third = unchanged[:, None, :, None] & unchanged[:, None, None, :]
    return _any(outputs & ~mask[:, j].T, scores & third if scores.size else scores)


def _order(pair: Pair) -> BoolArray:
    """Return which draws contradict the layer's declared dependence on positions if the inputs are permuted.

    If the layer is declared to ignore positions, outputs and scores must be permuted like the inputs. All draws in
    which they are not are wrong. If the layer is declared to use positions, and the answers of a correct simulator show
    this in every draw, all draws are wrong if the answers of the subject show it in none.
    """
    order = permutation(pair.layer.seq_len)
    ours, theirs = (reordered(pair, order, respond) for respond in pair.both)
    outputs, scores = pair.usual[0].changes(ours, CLEAR)
    wrong = _any(outputs, scores)
    if _any(*pair.usual[1].changes(theirs)).any():  # positions matter, if only slightly
        expected_changes = _any(*pair.usual[1].changes(theirs, CLEAR))
        wrong = expected_changes & expected_changes.all() & ~_any(*pair.usual[0].changes(ours)).any()
    if wrong.any():
        _require_fixed_weights(pair)
    if outputs.any() and wrong.any() and not scores.any() and random_by_position(pair) is not False:
        raise NotExaminedError("randomness by position, such as dropout, is indistinguishable from a use of positions")
    return wrong


def _scaling(pair: Pair) -> BoolArray:
    """Return which draws have scores or outputs that do not grow as declared when the inputs are doubled.

    Outputs are multiplied by a power of 2 if the inputs are normalised, or if the attention weights are homogeneous in
    the scores. They are multiplied by nearly 2 if the weights are positive and the scores so small that weights are
    nearly constant.
    """
    layer, traits, wrong = pair.layer, pair.layer.map.traits, []
    homogeneous = not refusing(layer, "homogeneous scores")
    if pair.known and homogeneous:
        wrong.append(_grown_otherwise(pair, 1.0, lambda answer: answer.scores))
    if layer.norm or (homogeneous and traits.homogeneous):
        wrong.append(_grown_otherwise(pair, 1.0, lambda answer: answer.outputs))
    elif small_with_inputs(layer) and traits.positive and not traits.may_vanish:
        wrong.append(_grown_otherwise(pair, _SMALLER * pair.small, lambda answer: answer.outputs))
    if not wrong:
        raise NotExaminedError("no exposed array is declared to grow in proportion to the inputs")
    return np.asarray(np.logical_or.reduce(wrong))


def _grown_otherwise(pair: Pair, factor: float, read: _Read) -> BoolArray:
    """Return which draws of an array grow by another factor than a correct simulator's when the inputs are doubled.

    The inputs are multiplied by `factor` first; `read` selects the array.
    """
    times = growth(pair, pair.right, factor, read)
    if not times:  # all weights of the right simulator vanish
        return np.zeros(len(pair.inputs), dtype=np.bool_)
    one, two = (_rows(read(pair.subject(scale * factor * pair.inputs))) for scale in (1.0, 2.0))
    baseline = _rows(read(pair.usual[0]))
    rounding = (1.0 + times) * _decimal(baseline)
    if baseline.any() and not two.any():  # numbers this small were rounded to 0
        return np.full(len(two), np.abs(_rows(read(pair.right(2.0 * factor * pair.inputs)))).max() > rounding)
    return np.asarray(np.abs(two - times * one).max(axis=1) > CLEAR * np.abs(two).max() + rounding)


def growth(pair: Pair, respond: Respond, factor: float, read: _Read) -> float:
    """Return by which factor the length of an array grows in the median draw when the inputs are doubled.

    `respond` is the simulator. Its inputs are multiplied by `factor` first; `read` selects the array from an answer.
    """
    one, two = (np.linalg.norm(_rows(read(respond(scale * factor * pair.inputs))), axis=1) for scale in (1.0, 2.0))
    return float(np.median(two[one > 0.0] / one[one > 0.0])) if one.any() else 0.0


def _rows(values: FloatArray | None) -> FloatArray:
    """Return an array as one row per draw; zeros if it is not exposed."""
    return np.zeros((1, 1)) if values is None else values.reshape(len(values), -1)


def _decimal(values: FloatArray) -> float:
    """Return the coarsest of 1, 0.1, …, 1e-7 of which all values are multiples, or 0 if there is none.

    The result is also 0 if all values are 0, or if a value is at least 2²⁴.

    Examples
    --------
    >>> _decimal(np.array([0.25, 1.5])), _decimal(np.array([np.pi])), _decimal(np.zeros(3))
    (0.01, 0.0, 0.0)
    """
    units = 10.0 ** -np.arange(8.0) if 0.0 < np.abs(values).max() < _LARGE else ()
    return float(next((unit for unit in units if np.abs(values / unit - np.rint(values / unit)).max() < 1e-3), 0.0))


def reordered(pair: Pair, order: NDArray[np.intp], respond: Respond) -> Answer:
    """Return the answer to inputs with permuted positions, with the positions of the answer permuted back."""
    return respond(pair.inputs[:, order]).permuted(np.argsort(order))


def permutation(s: int) -> NDArray[np.intp]:
    """Permute `s` positions: odd ones in descending, then even ones in ascending order; reversed if there are 2 or 3.

    Examples
    --------
    >>> permutation(4), permutation(3)
    (array([3, 1, 0, 2]), array([2, 1, 0]))
    """
    return np.arange(s)[::-1] if s < 4 else np.concatenate([np.arange(1, s, 2)[::-1], np.arange(0, s, 2)])


def random_by_position(pair: Pair) -> bool | None:
    """Return whether the use of positions varies from draw to draw, as under dropout, or None if this is not known.

    If the input is small at one position and 0 at the others, scores are 0 or equal to their biases. Then outputs are
    sums of at most H² products of this input with W_V W_O, for H heads, with factors that are the same in all draws.
    """
    s, images = pair.layer.seq_len, []
    size = pair.small if small_with_inputs(pair.layer) else 1.0
    for j in range(s):
        alone = np.zeros_like(pair.inputs)
        alone[:, j] = size * pair.inputs[:, 0]
        images.append(np.delete(pair.subject(alone).outputs, j, axis=1))
    sizes = np.linalg.svd(np.stack(images).swapaxes(1, 2).reshape(s * (s - 1), -1), compute_uv=False)
    most = pair.layer.num_heads**2
    return bool(sizes[most] > CLEAR * sizes[0]) if len(sizes) > most and sizes[0] else None


# A correct simulator may draw projections from a root of the inputs' Gram matrix instead of weights. With one neuron,
# the root is linear in the inputs, so such a simulator cannot be distinguished from one that draws weights.
_APART = SEVERAL_POSITIONS & SEVERAL_NEURONS


def _require_fixed_weights(pair: Pair) -> None:
    if pair.nonlinearity > CLEAR:
        raise NotExaminedError("no output is affine in one input: the weights may depend on the inputs")


def _any(outputs: BoolArray, scores: BoolArray) -> BoolArray:
    """Return which draws have a changed output or score."""
    return np.asarray(outputs.any(axis=1) | scores.any(axis=(1, 2, 3)))


def _check(
    name: str,
    compare: _Compare,
    null: str,
    requires: Requirement[Any] = ANY,
    cause: str = "",
    excluded: Callable[[Setting], str] = lambda setting: "",
) -> Check:
    def measure(sample: object, reference: Reference) -> tuple[int, int]:
        pair = reference.pair
        with refusals_not_examined():
            if compare is not _repeats and pair.reason_inexact:
                raise NotExaminedError(pair.reason_inexact)
            wrong = compare(pair)
        return int(wrong.sum()), len(wrong)

    return Check(
        name=f"structure.{name}",
        claim="structure",
        needs=frozenset({"outputs"}),
        null=null,
        alternative=Alternative.of("every draw differs", 1.0),
        reads="share of draws that differ:",
        family=lambda setting: Count(0.0),
        draws_per_unit=PER_ANSWER,
        measure=measure,
        hint=cause or f"it should hold that {null}, since equal generators must give equal weights",
        requires=requires,
        excluded=lambda setting: excluded(setting) if setting.draw_on else NO_INPUTS,
        any_weights=True,
    )


CHECKS = (
    _check("repeats", _repeats, "a repeated call gives the same numbers up to 1%, whatever calls come in between"),
    _check("draws", _draws, "a draw does not change with the inputs of other draws"),
    _check(
        "weights",
        _weights,
        "if all draws have equal inputs, no two have equal outputs, because each has its own weights",
        cause="draws of a call share their weights; each draw needs its own",
        excluded=lambda setting: "" if setting.weights.continuous else TWO_VALUES,
    ),
    _check(
        "hidden",
        _hidden,
        "no output depends on a masked input, and a score depends on the inputs at its two positions only",
        _APART,
    ),
    _check(
        "order", _order, "outputs and scores depend on the order of inputs if and only if the layer declares it", _APART
    ),
    _check(
        "scaling",
        _scaling,
        "doubling the inputs multiplies scores and outputs by the declared factors",
        excluded=lambda setting: (
            "with declared biases, no array grows in proportion to the inputs" if setting.weights.biased else ""
        ),
    ),
)
