"""How a subject answers changed inputs, with the same weights: what it computes is read off, without a list of causes.

A subject that receives its inputs is a function of inputs and generator. Called again with an equal generator, it has
the same weights, so that each answer is exact and needs no statistics. Every answer is compared with that of a right
simulator of the declared layer; the findings are what differs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck._lib.text import listed
from attncheck.checks.sample import Sample
from attncheck.faults.literal import LiteralSimulator, Projections
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import visible
from attncheck.layers.norm import normalised
from attncheck.simulators.collapsed import draw_images
from attncheck.subject import Subject

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_WEIGHTS_OR_VALUES, _AFTER = "attention weights or values", "after the scores"
#: Stages of the computation, in order.
STAGES = ("draws", "scores", _WEIGHTS_OR_VALUES, _AFTER, "outputs")
# Draws of an answer, and at most as many positions and blocks of neurons that are changed one after another.
_DRAWS, _MOST = 48, 16
# Entries of the weight matrices of an answer.
_WEIGHTS = 2**22
# A change is larger than this many rounding units of the largest number; a ratio is equal up to this share.
_UNITS, _SHARE = 200.0, 1e-3
# Largest scores of small inputs, and the share by which their outputs must differ.
_SMALL, _CLEAR = 3e-4, 1e-2
# Numbers shown.
_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a subject computes otherwise than declared, and the stage where it does."""

    stage: str
    text: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"


@dataclasses.dataclass(frozen=True)
class _Answer:
    """Outputs (draws, s, k) and visible scores (draws, heads, s, s), with others 0; None if not exposed."""

    outputs: FloatArray
    scores: FloatArray | None
    rounding: float

    def changes(self, other: _Answer) -> tuple[BoolArray, BoolArray]:
        """Return where outputs (draws, s) and scores (draws, heads, s, s) differ from those of another answer."""
        of_outputs = _differ(self.outputs, other.outputs, self.rounding)
        of_scores = np.zeros((len(of_outputs), 0, 0, 0), dtype=np.bool_)
        if self.scores is not None and other.scores is not None:
            of_scores = _differ(self.scores, other.scores, self.rounding)
        return np.logical_or.reduce(of_outputs, axis=-1), of_scores


def _differ(one: FloatArray, other: FloatArray, rounding: float) -> BoolArray:
    largest = max(float(np.abs(one).max(initial=0.0)), 1e-300)
    return np.asarray(np.abs(one - other) > _UNITS * rounding * largest, dtype=np.bool_)


_Respond = Callable[[FloatArray], _Answer]


@dataclasses.dataclass(frozen=True)
class _Pair:
    """The subject and a right simulator on one layer, and two independent sets of inputs, (draws, s, n)."""

    layer: AttentionLayer
    subject: _Respond
    right: _Respond
    inputs: FloatArray
    fresh: FloatArray

    @property
    def both(self) -> tuple[_Respond, _Respond]:
        return self.subject, self.right

    @property
    def small(self) -> float:
        """A factor of the inputs that makes scores small, beside a declared bias by distance."""
        usual, zero = (self.right(each).scores for each in (self.inputs, np.zeros_like(self.inputs)))
        assert usual is not None
        assert zero is not None
        return float((_SMALL / max(float(np.abs(usual - zero).max()), 1e-300)) ** 0.5)


def findings(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> list[Finding]:
    """Return what a subject computes otherwise than declared, by stage; empty if nothing differs or can be read off.

    Parameters
    ----------
    subject : Subject
        One that receives its inputs.
    layer : AttentionLayer
    rng : numpy.random.Generator

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> def running(layer, inputs, rng):
    ...     return {"outputs": inputs.cumsum(axis=1) @ rng.standard_normal((len(inputs), layer.width, 1))}
    >>> layer = AttentionLayer(width=8, seq_len=3, num_heads=1)
    >>> print(findings(Subject.of(running), layer, np.random.default_rng(0))[0])
    attention weights: position 0 attends to 0; declared 0 to 2; likewise 1 other
    """
    if subject.form != "inputs":
        return []
    size = max(4, min(_DRAWS, _WEIGHTS // layer.weight_entries))
    inputs, fresh = (draw_images(layer, size, rng) for _ in range(2))
    weights, own = rng.spawn(2)
    pair = _Pair(layer, _of_subject(subject, layer, weights), _of_right(layer, own), inputs, fresh)
    found: list[Finding] = []
    for test in _TESTS:
        with contextlib.suppress(InputError, FloatingPointError):  # such inputs may be refused: nothing is read off
            found += test(pair)
    return sorted(found, key=lambda each: STAGES.index(each.stage))


def _of_subject(subject: Subject, layer: AttentionLayer, rng: np.random.Generator) -> _Respond:
    def respond(inputs: FloatArray) -> _Answer:
        return _answer(layer, subject.draw_on(layer, inputs, copy.deepcopy(rng)))

    return respond


def _of_right(layer: AttentionLayer, rng: np.random.Generator) -> _Respond:
    def respond(inputs: FloatArray) -> _Answer:
        generator = copy.deepcopy(rng)
        arrays = LiteralSimulator().after(layer, projected(layer, inputs, generator), generator)
        return _answer(layer, Sample(layer, arrays["outputs"], scores=arrays["scores"]))

    return respond


def projected(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Project given inputs with explicit matrices."""
    seen = normalised(layer.norm, inputs)

    def project(matrices: int, std: float) -> FloatArray:
        weights = rng.standard_normal((len(seen), matrices, layer.width, layer.head_width))
        projected = std * layer.width**-0.5 * (seen[:, None] @ weights)
        return np.repeat(projected, layer.num_heads // matrices, axis=1)

    queries, keys, values = (
        project(layer.num_heads, layer.query_std),
        project(layer.kv_heads, layer.key_std),
        project(layer.kv_heads, layer.value_std),
    )
    return Projections(seen, queries, keys, values)


def _answer(layer: AttentionLayer, sample: Sample) -> _Answer:
    scores = None if sample.scores is None else np.where(visible(layer), sample.scores, 0.0)
    return _Answer(sample.outputs, scores, sample.rounding)


def _mixed_draws(pair: _Pair) -> Iterator[Finding]:
    """Change the inputs of every other draw."""
    changed = pair.inputs.copy()
    changed[::2] = pair.fresh[::2]
    outputs, scores = (each[1::2].any() for each in pair.subject(pair.inputs).changes(pair.subject(changed)))
    if scores:
        yield Finding("scores", "those of a draw change with the inputs of other draws")
    elif outputs:
        known = pair.subject(pair.inputs).scores is not None
        text = f"outputs of a draw change with the inputs of other draws{'; its scores do not' if known else ''}"
        yield Finding(_AFTER if known else "outputs", text)


def _shared_weights(pair: _Pair) -> Iterator[Finding]:
    """Give all draws the same inputs."""
    y = pair.subject(np.repeat(pair.inputs[:1], len(pair.inputs), axis=0)).outputs.reshape(len(pair.inputs), -1)
    _, first, of = np.unique(y, axis=0, return_index=True, return_inverse=True)
    again = np.flatnonzero((first[of.ravel()] != np.arange(len(y))) & y.any(axis=1))
    if again.size:
        which = f"{first[of.ravel()][again[0]]} and {again[0]} of a call"
        yield Finding("draws", f"draws {which} have the same weights; {len(first)} of {len(y)} draws differ")


def _positions(pair: _Pair) -> Iterator[Finding]:
    """Change the inputs at one position after another."""
    s = pair.layer.seq_len
    if s > _MOST:
        return
    (outputs, scores), (declared, of_scores) = (_seen(respond, pair) for respond in pair.both)
    if scores.size and (wrong := np.argwhere((scores != of_scores).any(axis=-1))).size:
        i, j = wrong[0]
        told = f"that of query {i} and key {j} changes with the inputs at {_places(scores[i, j])}"
        yield Finding("scores", f"{told}; declared {_places(of_scores[i, j])}{_likewise(len(wrong))}")
    if pair.layer.map.traits.may_vanish:  # which weights are 0 depends on the draws
        possible = visible(pair.layer) | np.eye(s, dtype=bool)
        declared = np.where((outputs & ~possible).any(axis=1, keepdims=True), possible, outputs)
    rows = np.flatnonzero((outputs != declared).any(axis=1))
    if rows.size:
        i = rows[0]
        told = f"position {i} attends to {_places(outputs[i])}; declared {_places(declared[i])}"
        yield Finding(_WEIGHTS_OR_VALUES, told + _likewise(len(rows)))


def _seen(respond: _Respond, pair: _Pair) -> tuple[BoolArray, BoolArray]:
    """Return which outputs (s, s) and scores (s, s, s) change with the input at the position of the last axis."""
    base, outputs, scores = respond(pair.inputs), [], []
    for j in range(pair.layer.seq_len):
        changed = pair.inputs.copy()
        changed[:, j] = pair.fresh[:, j]
        of_outputs, of_scores = base.changes(respond(changed))
        outputs.append(of_outputs.any(axis=0))
        scores.append(of_scores.any(axis=(0, 1)))
    return np.stack(outputs, axis=-1), np.stack(scores, axis=-1)


def _zero_inputs(pair: _Pair) -> Iterator[Finding]:
    """Give inputs of 0; the random bias of a declared table has no fixed answer."""
    if pair.layer.bias_std:
        return
    zero = np.zeros_like(pair.inputs)
    ours, declared, usual = pair.subject(zero), pair.right(zero), pair.subject(pair.inputs)
    if ours.scores is not None and declared.scores is not None and usual.scores is not None:
        gap = ours.scores - declared.scores
        if np.abs(gap).max() > _SHARE * np.abs(usual.scores).max():
            yield Finding("scores", f"inputs of 0 give scores other than {_declared(declared.scores)}: {_added(gap)}")
            return
    if np.abs(ours.outputs - declared.outputs).max() > _SHARE * np.abs(usual.outputs).max():
        yield Finding("outputs", "inputs of 0 give outputs other than 0: something is added to values or outputs")


def _declared(scores: FloatArray) -> str:
    return "declared" if scores.any() else "0"


def _added(gap: FloatArray) -> str:
    """Describe what is added to scores, (draws, heads, s, s)."""
    size = np.abs(gap).max()
    if np.ptp(gap, axis=0).max() > _SHARE * size:
        return "something is added that varies from draw to draw"
    heads, s = gap.shape[1:3]
    mean = gap[0]
    distances = [np.diagonal(mean, -d, axis1=1, axis2=2) for d in range(s)]
    if max(np.ptp(each, axis=1).max() for each in distances) > _SHARE * size:
        return f"up to {size:.3g} is added, by position"
    told = listed(f"{each[0, 0]:.3g} at distance {d}" for d, each in enumerate(distances[:_SHOWN]))
    apart = heads > 1 and np.ptp(mean, axis=0).max() > _SHARE * size
    return f"{told} is added{' to head 0, other numbers to others' if apart else ''}"


def _negated(pair: _Pair) -> Iterator[Finding]:
    """Change the sign of all inputs."""
    usual, negated = pair.subject(pair.inputs), pair.subject(-pair.inputs)
    changed = usual.changes(negated)[1].any()
    if changed:
        yield Finding("scores", "they change when all inputs change their sign: queries or keys have a bias, or a kink")
    elif usual.changes(dataclasses.replace(negated, outputs=-negated.outputs))[0].any():
        yield Finding("outputs", "they do not change their sign with all inputs: something is added, or not linear")


def _doubled(pair: _Pair) -> Iterator[Finding]:
    """Double all inputs, where scores are declared homogeneous."""
    layer = pair.layer
    if layer.softcap is not None or layer.bias_slopes is not None or layer.bias_std:
        return
    growths = [_growth(*(respond(each).scores for each in (pair.inputs, 2.0 * pair.inputs))) for respond in pair.both]
    ours, declared = growths
    if ours and declared and abs(ours / declared - 1.0) > _SHARE:
        asked = {1.0: ": are queries and keys normalised?", 2.0: ": are queries or keys normalised?"}
        ask = asked.get(round(ours, 3), "")
        told = f"they grow {ours:.3g} times when all inputs are doubled; declared {declared:.3g} times{ask}"
        yield Finding("scores", told)


def _growth(one: FloatArray | None, other: FloatArray | None) -> float:
    """Return the median ratio of lengths per draw, 0 if unknown."""
    if one is None or other is None:
        return 0.0
    lengths = [np.sqrt((each**2).reshape(len(each), -1).sum(axis=1)) for each in (one, other)]
    return float(np.median(lengths[1][lengths[0] > 0] / lengths[0][lengths[0] > 0])) if lengths[0].any() else 0.0


def _small_inputs(pair: _Pair) -> Iterator[Finding]:
    """Give small inputs, whose scores are nearly 0: outputs are linear in them, with known weights."""
    layer = pair.layer
    if layer.norm is not None or layer.qk_norm or layer.bias_std:
        return
    small, other = pair.small * pair.inputs, pair.small * pair.fresh
    growths = [_growth(*(respond(each).outputs for each in (small, 2.0 * small))) for respond in pair.both]
    if growths[0] and abs(growths[0] / growths[1] - 1.0) > _CLEAR:
        told = f"they grow {growths[0]:.3g} times when small inputs are doubled; declared {growths[1]:.3g} times"
        yield Finding("outputs", told)
        return
    apart = [_nonlinear(respond, small, other) for respond in pair.both]
    if apart[0] > _CLEAR and apart[1] < _SHARE:
        yield Finding("outputs", "those of a sum of small inputs are not the sum of theirs: not linear in the values")
    elif layer.seq_len <= _MOST and apart[1] < _SHARE and layer.bias_slopes is None:  # slopes differ between heads
        yield from _weights_at_zero(pair)


def _nonlinear(respond: _Respond, one: FloatArray, other: FloatArray) -> float:
    parts = [respond(each).outputs for each in (one, other, one + other)]
    return float(np.abs(parts[2] - parts[0] - parts[1]).max() / max(np.abs(parts[2]).max(), 1e-300))


def _weights_at_zero(pair: _Pair) -> Iterator[Finding]:
    """Compare the weights at scores of 0, up to a common factor."""
    ours, declared = (_weights(respond, pair) for respond in pair.both)
    factor = float((ours * declared).sum() / max(float((declared**2).sum()), 1e-300))
    gap = np.abs(ours - factor * declared)
    if factor <= 0.0 or gap.max() <= _CLEAR * factor * declared.max():
        return
    i = int(np.argmax(gap.max(axis=1)))
    told = [listed(f"{weight:.3g}" for weight in row[:_SHOWN]) for row in (ours[i] / factor, declared[i])]
    yield Finding(_WEIGHTS_OR_VALUES, f"where scores are 0, position {i} has {told[0]}; declared {told[1]}")


def _weights(respond: _Respond, pair: _Pair) -> FloatArray:
    """Return weights (s, s) up to a factor, from one input vector at one position after another."""
    s, small = pair.layer.seq_len, pair.small
    answers = []
    for j in range(s):
        alone = np.zeros_like(pair.inputs)
        alone[:, j] = small * pair.inputs[:, 0]
        answers.append(respond(alone).outputs)
    answered = np.stack(answers, axis=2)  # (draws, i, j, k)
    sizes = (answered**2).sum(axis=(0, 3))
    at = int(np.argmax(sizes))
    unit = answered[:, at // s, at % s]
    return np.asarray(np.einsum("nijk,nk->ij", answered, unit) / max(float((unit**2).sum()), 1e-300))


def _neurons(pair: _Pair) -> Iterator[Finding]:
    """Change one block of neurons of the inputs after another."""
    blocks = np.array_split(np.arange(pair.layer.width), min(pair.layer.width, _MOST))
    (outputs, scores), (declared, of_scores) = (_used(respond, pair, blocks) for respond in pair.both)

    def told(used: BoolArray) -> str:
        of_blocks = np.repeat(used, [len(block) for block in blocks])
        return f"use neurons {_places(of_blocks)} of the inputs; declared all"

    for h in range(scores.shape[1]):
        if (of_scores[:, h] & ~scores[:, h]).any():
            yield Finding("scores", f"those of head {h} {told(scores[:, h])}")
            return
    if (declared & ~outputs).any() and not pair.layer.map.traits.may_vanish:
        yield Finding(_AFTER if scores.size else "outputs", f"outputs {told(outputs)}")


def _used(respond: _Respond, pair: _Pair, blocks: Sequence[NDArray[np.intp]]) -> tuple[BoolArray, BoolArray]:
    """Return whether outputs (blocks,) and each head's scores (blocks, heads) change with blocks of neurons."""
    base, outputs, scores = respond(pair.inputs), [], []
    for block in blocks:
        changed = pair.inputs.copy()
        changed[..., block] = pair.fresh[..., block]
        of_outputs, of_scores = base.changes(respond(changed))
        outputs.append(of_outputs.any())
        scores.append(of_scores.any(axis=(0, 2, 3)))
    return np.array(outputs), np.stack(scores)


def _permuted(pair: _Pair) -> Iterator[Finding]:
    """Reverse the positions."""
    (outputs, scores), (declared, of_scores) = (_moved(respond, pair.inputs) for respond in pair.both)
    if scores.any() and not of_scores.any():
        yield Finding("scores", f"those of queries {_places(scores)} depend on their positions, not on inputs alone")
    elif outputs.any() and not declared.any():
        known = bool(scores.size)
        where = "; scores do not" if known else "; return scores to see where it begins"
        told = f"outputs at positions {_places(outputs)} depend on the positions of the inputs{where}"
        yield Finding(_AFTER if known else "outputs", told)


def _moved(respond: _Respond, inputs: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return at which positions outputs (s,) and scores (s,) are not reversed with the inputs."""
    usual, turned = respond(inputs), respond(inputs[:, ::-1])
    scores = None if turned.scores is None else turned.scores[..., ::-1, ::-1]
    outputs, of_scores = usual.changes(_Answer(turned.outputs[:, ::-1], scores, turned.rounding))
    return np.logical_or.reduce(outputs, axis=0), np.logical_or.reduce(of_scores, axis=(0, 1, 3))


def _equal_heads(pair: _Pair) -> Iterator[Finding]:
    """Compare the scores of heads."""
    answers = [respond(pair.inputs) for respond in pair.both]
    if answers[0].scores is None or answers[1].scores is None:
        return
    for g, h in itertools.combinations(range(pair.layer.num_heads), 2):
        ours, declared = (
            _differ(each.scores[:, g], each.scores[:, h], each.rounding).any()
            for each in answers
            if each.scores is not None
        )
        if declared and not ours:
            yield Finding("scores", f"those of heads {g} and {h} are the same")
            return


def _places(chosen: BoolArray) -> str:
    """Return the indices of True as text.

    Examples
    --------
    >>> _places(np.array([True, True, True, False, True])), _places(np.zeros(2, dtype=bool))
    ('0 to 2 and 4', 'none')
    """
    places = np.flatnonzero(chosen)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    told = [f"{run[0]} to {run[-1]}" if len(run) > 2 else listed(map(str, run)) for run in runs if len(run)]
    return listed(told) if told else "none"


def _likewise(count: int) -> str:
    return f"; likewise {count - 1} other{'s' * (count > 2)}" if count > 1 else ""


_TESTS = (
    _mixed_draws,
    _shared_weights,
    _equal_heads,
    _positions,
    _zero_inputs,
    _negated,
    _doubled,
    _neurons,
    _permuted,
    _small_inputs,
)
