"""Deviations of a subject from its layer, found by changing the inputs but not the weights.

A subject that receives its inputs is a function of inputs and generator. Called again with an equal generator, it has
the same weights, so its answers are exact and need neither statistics nor a list of causes. Each answer is compared
with that of a correct simulator of the declared layer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import InputError
from attncheck._lib.text import listed
from attncheck.checks.answers import CLEAR, Answer, Pair, Respond, differ, pair_of
from attncheck.checks.declared import DRAWS, INPUTS, SCORES, STAGES
from attncheck.checks.structure import growth
from attncheck.diagnosis.positions import (
    permuted,
    positions,
    positions_text,
    stage_of_outputs,
)
from attncheck.diagnosis.regression import UNEXPLAINED, by_regression
from attncheck.diagnosis.weights import weights_at_zero, weights_of_one_head
from attncheck.evidence import plot_data
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import refusing
from attncheck.layers.parts.scores import has_offset, small_with_inputs
from attncheck.records.explanation import Certainty, Explanation, exact
from attncheck.subject import Subject

# Number of draws of an answer, and maximum number of positions, or of blocks of neurons, that are changed one after
# another.
_DRAWS, _MOST = 48, 16
# Default base of positional encodings.
_BASE = 10_000.0
# Maximum number of entries of the weight matrices in one call of the subject.
_WEIGHTS = 2**22
# Numbers are equal if they differ by less than the share _SHARE of the largest number. For small inputs, only
# differences above the share _CLEAR count.
_SHARE, _CLEAR = 1e-3, 1e-2
# Number of calls that give all draws the same inputs. In a single call, rounded outputs might agree by chance.
_TIMES = 4
_NOT_LINEAR = "outputs are not linear in small inputs: outputs for a sum of inputs are not the sum of their outputs"
# Texts that leave open what is wrong; the layer is then reduced to one head.
_VAGUE = (UNEXPLAINED, _NOT_LINEAR)
# Maximum count of numbers in a message.
_MOST_LINES = 6


def findings(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> list[Explanation]:
    """Return the deviations of a subject from the declared layer, by stage; empty if none can be found.

    Parameters
    ----------
    subject : Subject
        Subject that receives its inputs.
    layer : AttentionLayer
    rng : numpy.random.Generator

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> def running(layer, inputs, rng):
    ...     return {"outputs": inputs.cumsum(axis=1) @ rng.standard_normal((len(inputs), layer.width, 1))}
    >>> layer = AttentionLayer(width=8, seq_len=3, num_heads=1)
    >>> print(findings(Subject.of(running), layer, np.random.default_rng(0))[0])
    attention weights or values: the output at 0 depends on the inputs at 0; declared 0 to 2; 1 other is wrong too
    """
    if subject.form != "inputs":
        return []
    size = max(4, min(_DRAWS, _WEIGHTS // layer.weight_entries))
    pair = pair_of(subject.draw_on, layer, size, rng, subject.weights.continuous)
    # With declared biases, queries, keys and values are not linear in the inputs.
    out = _LINEAR if subject.weights.biased else ()
    groups: Sequence[Sequence[Callable[[Pair], Iterator[Explanation]]]] = ()
    with contextlib.suppress(InputError):
        groups = () if pair.reason_inexact or _may_use_other_weights(pair) else _TESTS
    by_group = (_first_difference(pair, [test for test in group if test not in out]) for group in groups)
    explanations = sorted(next(filter(None, by_group), []), key=lambda explanation: STAGES.index(explanation.stage))
    if explanations and explanations[0].stage == INPUTS:
        return explanations[:1]  # the others follow from it
    if not explanations or explanations[0].text not in _VAGUE:
        return explanations
    one_head = _with_one_head(subject, layer, rng) if layer.num_heads > 1 else []
    return _first_difference(pair, [_equal_positions]) or one_head or explanations


def _may_use_other_weights(pair: Pair) -> bool:
    """Return whether the weights may depend on the inputs, because no output or score is linear in the inputs."""
    with contextlib.suppress(InputError):  # the subject may refuse inputs of 0
        return pair.nonlinearity > CLEAR
    return False


def _with_one_head(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> list[Explanation]:
    """Return the findings on the layer reduced to one head if they say what is wrong, otherwise an empty list."""
    with contextlib.suppress(InputError):  # the subject may not support it
        explanations = findings(subject, layer.replace(num_heads=1, num_kv_heads=None, head_dim=None), rng)
        if explanations and explanations[0].text not in _VAGUE:
            return [msgspec.structs.replace(e, text=f"with one head, {e.text}") for e in explanations]
    return []


def _first_difference(pair: Pair, tests: Sequence[Callable[[Pair], Iterator[Explanation]]]) -> list[Explanation]:
    explanations: list[Explanation] = []
    for test in tests:
        with contextlib.suppress(InputError, FloatingPointError):  # the subject may refuse such inputs
            explanations += test(pair)
    return explanations


def _mixed_draws(pair: Pair) -> Iterator[Explanation]:
    """Find draws that depend on the inputs of other draws, by changing the inputs of every second draw."""
    answer = pair.subject(pair.fresh_at(np.s_[::2]))
    outputs, scores = (change[1::2].any() for change in pair.usual[0].changes(answer))
    if scores:
        yield exact(SCORES, "the scores of a draw change with the inputs of other draws")
    elif outputs:
        text = f"outputs of a draw change with the inputs of other draws{'; its scores do not' if pair.known else ''}"
        yield exact(stage_of_outputs(pair), text)


def _shared_weights(pair: Pair) -> Iterator[Explanation]:
    """Find draws with equal weights, by giving all draws the same inputs several times."""
    if not pair.continuous:
        return
    answers = [pair.subject(np.repeat(array[None], len(pair.inputs), axis=0)).outputs for array in pair.inputs[:_TIMES]]
    y = np.concatenate([array.reshape(len(array), -1) for array in answers], axis=1)
    _, first, of = np.unique(y, axis=0, return_index=True, return_inverse=True)
    again = np.flatnonzero((first[of.ravel()] != np.arange(len(y))) & y.any(axis=1))
    if again.size:
        which = f"{first[of.ravel()][again[0]]} and {again[0]}"
        text = f"{which} of a call have the same weights; only {len(first)} of {len(y)} are distinct"
        yield Explanation(text, Certainty.IDENTIFIED, DRAWS)


def _zero_inputs(pair: Pair) -> Iterator[Explanation]:
    """Find terms added to scores or outputs, by passing inputs of 0; skipped if a random bias is declared."""
    if pair.layer.bias_std:
        return
    zero = np.zeros_like(pair.inputs)
    ours, declared, baseline = pair.subject(zero), pair.right(zero), pair.usual[0]
    outputs = bool(np.abs(ours.outputs).max() > _SHARE * np.abs(baseline.outputs).max())
    draws, s, _ = pair.inputs.shape
    if outputs and _encoded(pair, np.arange(s)[:, None]):
        yield exact(INPUTS, "a sinusoidal encoding of the positions is added to the inputs")
        return
    if outputs and _encoded(pair, np.arange(draws)[:, None, None]):
        yield exact(INPUTS, "positions are counted along the batch: the encoding of a draw's index is added")
        return
    if ours.scores is not None and declared.scores is not None and baseline.scores is not None:
        gap = ours.scores - declared.scores
        if np.abs(gap).max() > _SHARE * np.abs(baseline.scores).max():
            if outputs:
                text = "inputs of 0 give scores and outputs other than 0, as if something were added to the inputs"
                yield exact(INPUTS, text)
            else:
                usually = "declared" if declared.scores.any() else "0"
                text = f"inputs of 0 give scores other than {usually}: {_added(pair.layer, gap)}"
                matrices = ours.scores[0, 0], declared.scores[0, 0]
                yield exact(SCORES, text, plot_data.positions(*matrices, "key", "Scores of head 0 for inputs of 0"))
            return
    if outputs:
        yield exact(stage_of_outputs(pair), "inputs of 0 give outputs other than 0: something is added")


def _encoded(pair: Pair, index: NDArray[np.intp]) -> bool:
    """Return whether a sinusoidal encoding of `index`, of a draw or a position, is added to the inputs.

    If so, inputs that are the negative of this encoding give outputs of 0.
    """
    n = pair.layer.width
    neurons = np.arange(n)
    angles = index * _BASE ** (-(neurons - neurons % 2) / n)
    encoding = np.where(neurons % 2, np.cos(angles), np.sin(angles))
    rest = pair.subject(np.broadcast_to(-encoding, pair.inputs.shape)).flat
    return bool(np.abs(rest).max() <= _SHARE * np.abs(pair.usual[0].flat).max())


def _added(layer: AttentionLayer, gap: FloatArray) -> str:
    """Return text on `gap`, the numbers added to scores, (draws, heads, s, s)."""
    size = np.abs(gap).max()
    if np.ptp(gap, axis=0).max() > _SHARE * size:
        return "something is added that varies from draw to draw"
    s, mask = layer.seq_len, layer.visible
    offsets: dict[int, FloatArray] = {}
    for offset in sorted(range(1 - s, s), key=abs):
        numbers = np.diagonal(gap[0], offset, axis1=1, axis2=2)[:, np.diagonal(mask, offset)]
        if numbers.size and np.ptp(numbers, axis=1).max() > _SHARE * size:
            return f"numbers of up to {size:.3g} that depend on the position are added"
        if numbers.size:
            offsets[offset] = numbers[:, 0]
    is_uneven = max(map(np.ptp, offsets.values())) > _SHARE * size
    of_head = " to head 0, other numbers to others" if is_uneven else ""
    back = {-offset: numbers for offset, numbers in offsets.items() if offset <= 0}
    if all(np.abs(numbers - back.get(abs(at), np.inf)).max() <= _SHARE * size for at, numbers in offsets.items()):
        listing = listed(f"{numbers[0]:.3g} at distance {d}" for d, numbers in [*back.items()][:_MOST_LINES])
        return f"{listing} is added{of_head}"
    listing = listed(f"{numbers[0]:.3g} at {offset}" for offset, numbers in [*offsets.items()][:_MOST_LINES])
    return f"by key minus query position, {listing} is added{of_head}"


def _negated(pair: Pair) -> Iterator[Explanation]:
    """Find biases and nonlinearities, by changing the sign of all inputs."""
    baseline, negated = pair.usual[0], pair.subject(-pair.inputs)
    changed = baseline.changes(negated)[1].any()
    if changed:
        yield exact(SCORES, "they change when all inputs change sign: queries or keys have a bias, or are not linear")
    elif baseline.changes(dataclasses.replace(negated, outputs=-negated.outputs))[0].any():
        text = "outputs do not change sign when all inputs do: something is added, or is not linear"
        yield exact(stage_of_outputs(pair), text)


def _doubled(pair: Pair) -> Iterator[Explanation]:
    """Find scores that grow wrongly, by doubling all inputs, if the declared scores are homogeneous."""
    if refusing(pair.layer, "homogeneous scores"):
        return
    ours, declared = (growth(pair, respond, 1.0, lambda answer: answer.scores) for respond in pair.both)
    if ours and declared and abs(ours / declared - 1.0) > _SHARE:
        questions = {1.0: ": are queries and keys normalised?", 2.0: ": are queries or keys normalised?"}
        ask = questions.get(round(ours, 3), "")
        text = f"they grow {ours:.3g} times when all inputs are doubled; declared {declared:.3g} times{ask}"
        yield exact(SCORES, text)


def _small_inputs(pair: Pair) -> Iterator[Explanation]:
    """Find nonlinearities and wrong attention weights, by calls with small inputs.

    Small inputs make scores nearly 0, so the outputs must be linear in the inputs.
    """
    layer = pair.layer
    if not small_with_inputs(layer):
        return
    small, fresh = pair.small * pair.inputs, pair.small * pair.fresh
    ours, declared = (growth(pair, respond, pair.small, lambda answer: answer.outputs) for respond in pair.both)
    if ours and abs(ours / declared - 1.0) > _CLEAR:
        ask = ": are they, or the outputs of heads, normalised?" if round(ours, 1) == 1.0 else ""
        text = f"outputs grow {ours:.3g} times when small inputs are doubled; declared {declared:.3g} times{ask}"
        yield exact(stage_of_outputs(pair), text)
        return
    ratios = [_nonlinear(respond, small, fresh) for respond in pair.both]
    if ratios[0] > _CLEAR and ratios[1] < _SHARE:
        yield from [*weights_of_one_head(pair)] or [exact(stage_of_outputs(pair), _NOT_LINEAR)]
    elif layer.seq_len <= _MOST and ratios[1] < _SHARE and not has_offset(layer):  # offsets may differ between heads
        yield from weights_at_zero(pair)


def _nonlinear(respond: Respond, one: FloatArray, two: FloatArray) -> float:
    parts = [respond(inputs).outputs for inputs in (one, two, one + two)]
    return float(np.abs(parts[2] - parts[0] - parts[1]).max() / max(np.abs(parts[2]).max(), 1e-300))


def _neurons(pair: Pair) -> Iterator[Explanation]:
    """Find unused neurons of the inputs, by changing one block of neurons after another."""
    blocks = np.array_split(np.arange(pair.layer.width), min(pair.layer.width, _MOST))
    (outputs, scores), (declared, of_scores) = pair.each(partial(_used, pair, blocks))

    def usage(used: BoolArray) -> str:
        of_blocks = np.repeat(used, [len(block) for block in blocks])
        return f"use neurons {positions_text(of_blocks)} of the inputs; declared all"

    for h in range(scores.shape[1]):
        if (of_scores[:, h] & ~scores[:, h]).any():
            yield exact(SCORES, f"those of head {h} {usage(scores[:, h])}")
            return
    if (declared & ~outputs).any() and not pair.layer.map.traits.may_vanish:
        yield exact(stage_of_outputs(pair), f"outputs {usage(outputs)}")


def _used(
    pair: Pair, blocks: Sequence[NDArray[np.intp]], respond: Respond, baseline: Answer
) -> tuple[BoolArray, BoolArray]:
    """Return whether outputs, (blocks,), and each head's scores, (blocks, heads), change with each block of neurons.

    `respond` is the simulator, and `baseline` its answer to the unchanged inputs.
    """
    output_flags, score_flags = [], []
    for block in blocks:
        output_changes, score_changes = baseline.changes(respond(pair.fresh_at(np.s_[..., block])))
        output_flags.append(output_changes.any())
        score_flags.append(score_changes.any(axis=(0, 2, 3)))
    return np.array(output_flags), np.stack(score_flags)


def _equal_inputs(pair: Pair) -> Iterator[Explanation]:
    """Find scores that differ although all positions have equal inputs, unless the declared scores use positions."""
    same = np.repeat(pair.inputs[:, :1], pair.layer.seq_len, axis=1)
    mask = pair.layer.visible
    answers = [respond(same) for respond in pair.both]
    zeros, of_declared = (_share_of_zeros(answer, mask) for answer in answers)
    if 0.0 < zeros < 1.0 and of_declared == 0.0:
        yield exact(SCORES, f"for equal inputs, {zeros:.0%} of them are 0 and the others are not: is there dropout?")
        return
    ours, declared = (_ratios(pair.layer, answer) for answer in answers)
    if ours is None or declared is None or np.ptp(declared[mask]) > _SHARE:
        return
    if np.ptp(ours[mask]) <= _SHARE:
        return
    by_key = all(np.ptp(ours[mask[:, j], j]) <= _SHARE for j in range(len(ours)) if mask[:, j].any())
    row = ours[-1] if by_key else ours[int(np.argmax(np.where(mask, np.abs(ours - 1.0), 0.0).max(axis=1)))]
    listing = listed(f"{ratio:.3g}" for ratio in row[:_MOST_LINES])
    where = "by key" if by_key else "in a row"
    plot = plot_data.positions(mask * ours, mask, "key", "Scores for equal inputs, divided by the first score")
    yield exact(SCORES, f"for equal inputs they are not equal, but {listing} times the first, {where}", plot)


def _equal_positions(pair: Pair) -> Iterator[Explanation]:
    """Find outputs that are not linear in the values, by doubling inputs that are equal at all positions.

    The attention weights of each query are then multiplied by the same value, so that only their sum matters.
    """
    same = dataclasses.replace(pair, inputs=np.repeat(pair.inputs[:, :1], pair.layer.seq_len, axis=1))
    ours, declared = (growth(same, respond, 1.0, lambda answer: answer.outputs) for respond in pair.both)
    if ours and abs(declared - 2.0) <= _SHARE and abs(ours - 2.0) > _CLEAR:
        text = f"when inputs equal at all positions are doubled, outputs grow {ours:.3g} times; declared 2 times"
        causes = "a function is applied to values or outputs, or weights do not add up to 1"
        yield exact(stage_of_outputs(pair), f"{text}: {causes}")


def _share_of_zeros(answer: Answer, mask: BoolArray) -> float:
    """Return the share of visible scores that are 0; 0 if there are no scores."""
    return 0.0 if answer.scores is None else float((answer.scores[..., mask] == 0.0).mean())


def _ratios(layer: AttentionLayer, answer: Answer) -> FloatArray | None:
    """Return the ratio of each score to the first one, (positions, positions).

    Return None if the ratios differ between draws or heads.
    """
    if answer.scores is None:
        return None
    first = answer.scores[:, :, :1, :1]
    if not layer.visible[0, 0] or not first.all():
        return None
    ratios = (answer.scores / first).reshape(-1, *answer.scores.shape[2:])
    return np.asarray(ratios[0]) if np.ptp(ratios, axis=0).max() <= _SHARE * np.abs(ratios).max() else None


def _equal_heads(pair: Pair) -> Iterator[Explanation]:
    """Find pairs of heads with the same scores."""
    if not pair.known:
        return
    for g, h in itertools.combinations(range(pair.layer.num_heads), 2):
        ours, declared = (
            differ(answer.scores[:, g], answer.scores[:, h], answer.rounding).any()
            for answer in pair.usual
            if answer.scores is not None
        )
        if declared and not ours:
            yield exact(SCORES, f"heads {g} and {h} have the same scores")
            return


_LINEAR = (_zero_inputs, _negated, _doubled, _small_inputs, by_regression)
# A group of tests runs only if no earlier group has findings, because its own findings could be their consequences.
_TESTS = (
    (_mixed_draws,),
    (_shared_weights,),
    (
        _equal_heads,
        positions,
        _equal_inputs,
        _zero_inputs,
        _negated,
        _doubled,
        _neurons,
        permuted,
        _small_inputs,
    ),
    (by_regression,),
)
