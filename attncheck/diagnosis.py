"""What is wrong, in words and numbers: estimates that a person can compare with the declaration.

A diagnosis explains a verdict and is none: its intervals are the usual normal ones, on a fresh sample.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import ACTIVATIONS, ATTENTION_MAPS, DEFAULT_CLIP, MASKS, SCORE_SCALINGS, AttentionLayer
from attncheck.attention_map import visible
from attncheck.case import ProgramCase
from attncheck.checks.check import Setting
from attncheck.checks.reference import Reference
from attncheck.checks.registry import checks_of
from attncheck.checks.sample import Sample
from attncheck.errors import InputError
from attncheck.evidence.exchange import Calls
from attncheck.evidence.streams import seed_sequence, stream
from attncheck.simulators import simulate
from attncheck.subject import Subject
from attncheck.unit import Unit

FloatArray = NDArray[np.float64]

#: How the sentence on the outputs' scale begins.
OUTPUT_VARIANCE = "output variance"
_SIZE = 4_000
# Entries of a diagnosis' largest array.
_ENTRIES = 2**21
_QUANTILE = 3.29
# Digits that are shown: more where rounding would put what is declared on the other side of the interval's end.
_DIGITS = (3, 4, 5, 6)
# Distances of positions whose inputs are compared, where positions decide on them.
_STEPS = 3
# Properties whose checks must agree with a layer before it is named, and their level together.
_CONFIRMING, _CONFIRMING_LEVEL = ("exactness", "scores", "conditional"), 0.01
# Calls that are compared with each other, their draws, and the level of the comparison.
_CALLS, _CALL_DRAWS, _CALLS_LEVEL = 24, 60, 1e-6
#: What a simulator may have read otherwise than declared.
_READINGS: dict[str, tuple[Any, ...]] = {
    "score_scaling": SCORE_SCALINGS,
    "attention_map": ATTENTION_MAPS,
    "mask": MASKS,
    "head_scaling": (True, False),
    "head_dim": (None,),
    "activation": ACTIVATIONS,
    "position_std": (0.0,),
    "tied_query_key": (True, False),
}
#: What else a variance of a matrix' entries may be, over 1/n, and who makes it so.
_INITIALISATIONS = {
    1 / 3: "nn.Linear's default, uniform within ±1/√n",
    1 / 2: "Xavier's for a packed 3n × n matrix, as in nn.MultiheadAttention",
    2.0: "He's (Kaiming's) for relu",
}
# Estimates that are the variance of one matrix over its declared one; how narrow they must be to name another.
_MATRICES = {
    "score variance given inputs and keys": "W_Q",
    "key variance": "W_K",
    "value variance": "W_V",
    "output variance given scores and values": "W_O",
}
_NARROW = 1.2
# What has to change with a field.
_WITH: dict[str, dict[str, Any]] = {
    "activation": {"clip": DEFAULT_CLIP},
    "position_std": {"position_reach": 1.0},
}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A quantity, observed with a 99.9% interval, and what the layer declares.

    Attributes
    ----------
    name : str
    value, low, high, declared : float
    ratio : bool
        Whether the unit is what is declared, so that 1 is.
    positive : bool
        Whether it is the mean of numbers none of which is negative.
    source : str
        How what is declared was had, where another sample would give another number.
    """

    name: str
    value: float
    low: float
    high: float
    declared: float
    ratio: bool = False
    positive: bool = False
    source: str = ""

    @property
    def differs(self) -> bool:
        """Whether the declared value lies outside the interval, and the interval means something.

        One of a positive number that reaches below 0 does not: a few large draws make it, and may be missing. That of
        numbers which are all 0 does.
        """
        wide = self.positive and self.low <= 0.0 < self.high
        return not self.low <= self.declared <= self.high and not wide

    def __str__(self) -> str:
        for digits in _DIGITS:
            value, low, high, declared = (
                f"{number:#.{digits}g}".rstrip(".") for number in (self.value, self.low, self.high, self.declared)
            )
            if self.differs == (not float(low) <= float(declared) <= float(high)):
                break
        said = " times the declared" if self.ratio else f", declared {declared}"
        return f"{self.name} {value} [{low}, {high}]{said}{self.source and f' {self.source}'}"


def diagnose(unit: Unit, subject: Subject, seed: int) -> list[str]:
    """Return the estimates that differ from the declaration, each a sentence.

    Parameters
    ----------
    unit : Unit
        Where something was violated.
    subject : Subject
    seed : int
        The run seed; the sample has a stream of its own.
    """
    layer = unit.layer
    if isinstance(layer, ProgramCase):
        return []  # the checks of programs name what differs themselves
    size = max(64, min(_SIZE, _ENTRIES // layer.stored_entries, 100_000_000 // layer.weight_entries))
    key = (unit.property_name, layer.to_dict())
    sample = subject.draw(layer, size, stream(seed, *key, role="diagnosis"))
    found = differences(sample, seed_sequence(seed, *key, role="diagnosis/reference"))
    return [*_calls(layer, subject, stream(seed, *key, role="diagnosis/calls")), *found]


def differences(sample: Sample, seed: np.random.SeedSequence) -> list[str]:
    """Return the estimates from a sample that differ from the declaration, and what they would fit, as sentences.

    Parameters
    ----------
    sample : Sample
    seed : numpy.random.SeedSequence
        For draws of the exact law to compare with, four times as many.
    """
    found = [estimate for estimate in _estimates(sample, seed) if estimate.differs]
    if not found:
        return []
    fits = [*_root_scaling(sample, seed), *_fitting(sample, seed)]
    return [*map(str, found), *(fits or _initialised(sample.layer, found))]


def _calls(layer: AttentionLayer, subject: Subject, rng: np.random.Generator) -> Iterator[str]:
    """Say if calls of the subject differ by more than draws of one call do, as where draws share their weights."""
    size = max(8, min(_CALL_DRAWS, 1_000_000 // layer.weight_entries))
    calls = [subject.draw(layer, size, rng) for _ in range(_CALLS)]
    sizes = [[_mean_square(call.outputs) for call in calls]]
    if all(call.scores is not None for call in calls):
        sizes.append([_mean_square(np.where(visible(layer), call.need("scores"), 0.0)) for call in calls])
    outcomes = [Calls(_CALLS).test(np.concatenate(each), [len(call) for call in calls]) for each in sizes]
    if all(outcome.p_value > _CALLS_LEVEL for outcome in outcomes):
        return
    yield "calls of the simulator differ by more than the draws of one call do; each draw needs weights of its own"


def _initialised(layer: AttentionLayer, found: Sequence[Estimate]) -> Iterator[str]:
    """Say which matrices have the variance of a usual initialisation, where the layer declares another."""
    stds = {"W_Q": layer.query_std, "W_K": layer.key_std, "W_V": layer.value_std, "W_O": layer.output_std}
    for variance, whose in _INITIALISATIONS.items():
        fits = [
            matrix
            for each in found
            if (matrix := _MATRICES.get(each.name, ""))
            and each.low <= variance / stds[matrix] ** 2 <= each.high < _NARROW * each.low
        ]
        if fits:
            yield f"{', '.join(fits)}: {variance:.2g}/n, as observed, is the variance of {whose}"


def _fitting(sample: Sample, seed: np.random.SeedSequence) -> Iterator[str]:
    """Yield what the layer would have to declare, in one field, for estimates and checks to agree with it."""
    for field, value in _readings(sample.layer):
        try:
            layer = sample.layer.replace(**{field: value, **_WITH.get(field, {})})
        except InputError:  # no such layer
            continue
        masked = sample.scores is not None and not np.isfinite(sample.scores[..., visible(layer)]).all()
        if layer == sample.layer or masked:
            continue
        read = dataclasses.replace(sample, layer=layer)
        if not any(estimate.differs for estimate in _estimates(read, seed)) and _passes(read, seed):
            yield f"all of it fits a layer with {field}={value!r}"


def _readings(layer: AttentionLayer) -> Iterator[tuple[str, Any]]:
    """Yield fields with what a simulator may have read in them."""
    yield from ((field, value) for field, values in _READINGS.items() for value in values)
    if layer.position_std:
        # Left at its default, or an exponent that is off by a factor of 2 or 4.
        factors = (0.5, 0.5**0.5, 2.0**0.5, 2.0)
        reaches = dict.fromkeys((1.0, *(round(factor * layer.position_reach, 4) for factor in factors)))
        yield from (("position_reach", reach) for reach in reaches)


def _root_scaling(sample: Sample, seed: np.random.SeedSequence) -> Iterator[str]:
    """Say if tied scores are divided by √ν: no layer declares that, as it has no limit."""
    layer = sample.layer
    if not layer.tied_query_key or sample.scores is None or layer.head_width == 1:
        return
    exact = simulate(layer, 4 * len(sample), seed)
    reference = Sample(layer, exact.outputs, scores=exact.scores)
    read = dataclasses.replace(sample, scores=sample.scores * layer.head_width**-0.5)
    off, mended = (
        any(estimate.differs for estimate in _score_estimates(each, lambda: reference)) for each in (sample, read)
    )
    if off and not mended:
        yield "scores fit 1/√n: they are divided by the root of what score_scaling='1/n' divides tied ones by"


def _passes(sample: Sample, seed: np.random.SeedSequence) -> bool:
    """Return whether no check of the cheap properties finds anything suspicious in a sample."""
    setting = Setting(sample.layer, sample.exposed, sample.coordinates)
    reference = Reference(sample.layer, len(sample), sample.coordinates, seed)
    checks = [check for name in _CONFIRMING for check in checks_of(name) if not check.reason_not_examined(setting)]
    p_values = (check.test(setting, check.measure(sample, reference)).p_value for check in checks)
    return all(p_value > _CONFIRMING_LEVEL / len(checks) for p_value in p_values)


def _estimates(sample: Sample, seed: np.random.SeedSequence) -> Iterator[Estimate]:
    """Yield what the exposure allows, the most telling first."""

    @functools.cache
    def reference() -> Sample:
        exact = simulate(sample.layer, 4 * len(sample), seed)
        return Sample(sample.layer, exact.outputs, scores=exact.scores, input_gram=exact.input_gram)

    if sample.input_gram is not None:
        yield from _input_estimates(sample, reference)
    if sample.scores is not None:
        yield from _score_estimates(sample, reference)
    if {"input_gram", "key_gram", "masked scores"} <= sample.exposed and not sample.layer.tied_query_key:
        yield _ratio("score variance given inputs and keys", sample.whitened_scores.squares())
    if {"input_gram", "key_gram"} <= sample.exposed:
        yield _ratio("key variance", sample.key_energy())
    if {"input_gram", "value_gram"} <= sample.exposed:
        yield _ratio("value variance", sample.value_energy())
    if {"scores", "value_gram"} <= sample.exposed:
        yield _ratio("output variance given scores and values", sample.output_residual.squares())
    yield _compared(OUTPUT_VARIANCE, _mean_square(sample.outputs), _mean_square(reference().outputs))
    means = sample.outputs.mean(axis=(1, 2))
    yield _mean("mean of the outputs", means, 0.0)


def _input_estimates(sample: Sample, reference: Callable[[], Sample]) -> Iterator[Estimate]:
    grams = [each.need("input_gram") for each in (sample, reference())]
    s = sample.layer.seq_len
    ours, theirs = (np.trace(gram, axis1=1, axis2=2) / s for gram in grams)
    yield _compared("mean square of the inputs", ours, theirs)
    if s > 1:
        apart = ~np.eye(s, dtype=bool)
        yield _compared("mean product of inputs at two positions", *(gram[:, apart].mean(axis=1) for gram in grams))
    for steps in range(1, min(s, 1 + _STEPS)) if sample.layer.position_std else ():
        name = f"mean product of inputs at positions {steps} apart (position_std, position_reach)"
        yield _compared(name, *(np.diagonal(gram, steps, axis1=1, axis2=2).mean(axis=1) for gram in grams))


def _score_estimates(sample: Sample, reference: Callable[[], Sample]) -> Iterator[Estimate]:
    seen = visible(sample.layer)
    scores = sample.need("scores")
    if "input_gram" in sample.exposed and not sample.layer.tied_query_key:
        yield from _score_variance(scores[..., seen] ** 2, _score_variances(sample)[..., seen])
    else:
        ours, theirs = (_mean_square(each.need("scores")[..., seen]) for each in (sample, reference()))
        yield _compared("score variance", ours, theirs)
    name, own = "mean score of a position with itself", _own_scores(sample)
    if sample.layer.tied_query_key:
        yield _compared(name, own, _own_scores(reference()))
    else:
        yield _mean(name, own, 0.0)


def _score_variances(sample: Sample) -> FloatArray:
    """Return the declared variance of each score given the inputs, σ_Q² σ_K² factor² G_ii G_jj: (N, 1, s, s)."""
    diagonal = np.diagonal(sample.need("input_gram"), axis1=1, axis2=2)
    std = sample.layer.query_std * sample.layer.key_std * sample.layer.score_factor
    return np.asarray(std**2 * diagonal[:, None, :, None] * diagonal[:, None, None, :])


def _score_variance(squares: FloatArray, declared: FloatArray) -> Iterator[Estimate]:
    """Compare squared scores, (N, H, entries), with their variances given the inputs, (N, 1, entries).

    Inputs vary, squares and variances vary with them: the interval is that of what is left of a draw's mean square
    when its mean variance is taken off, times the ratio of both over all draws. In narrow layers it is wide even so,
    and squares over variances, entry by entry, may tell what it does not.
    """
    ours, theirs = (_per_draw(each) for each in (squares, declared))
    value, unit = float(ours.mean()), float(theirs.mean())
    left = ours - (value / unit if unit else 1.0) * theirs
    half = _QUANTILE * float(left.std()) / len(left) ** 0.5
    variance = Estimate(
        "score variance", value, value - half, value + half, unit, positive=True, source="given the drawn inputs"
    )
    yield variance
    if not variance.differs:
        ratio = np.divide(squares, declared, out=np.ones_like(squares), where=declared > 0)
        yield dataclasses.replace(_mean("score variance entry by entry", _per_draw(ratio), 1.0), ratio=True)


def _own_scores(sample: Sample) -> FloatArray:
    """Return each draw's mean of the p_ii."""
    return np.asarray(np.diagonal(sample.need("scores"), axis1=2, axis2=3).mean(axis=(1, 2)))


def _mean_square(values: FloatArray) -> FloatArray:
    return _per_draw(values**2)


def _per_draw(values: FloatArray) -> FloatArray:
    """Return each draw's mean."""
    return np.asarray(values.reshape(len(values), -1).mean(axis=1))


def _mean(name: str, values: FloatArray, declared: float) -> Estimate:
    half = _QUANTILE * float(values.std()) / len(values) ** 0.5
    mean = float(values.mean())
    return Estimate(name, mean, mean - half, mean + half, declared, positive=bool((values >= 0.0).all()))


def _compared(name: str, ours: FloatArray, theirs: FloatArray) -> Estimate:
    """Compare with the mean over a larger sample of the exact law, whose error widens the interval."""
    half = _QUANTILE * float(np.hypot(ours.std() / len(ours) ** 0.5, theirs.std() / len(theirs) ** 0.5))
    mean, positive = float(ours.mean()), bool((ours >= 0.0).all())
    declared = float(theirs.mean())
    return Estimate(
        name, mean, mean - half, mean + half, declared, positive=positive, source="by draws of the exact law"
    )


def _ratio(name: str, squares: tuple[FloatArray, FloatArray]) -> Estimate:
    """Estimate a variance ratio from sums of squares and degrees of freedom."""
    total, dof = (part.reshape(len(part), -1).sum(axis=1) for part in squares)
    return dataclasses.replace(_mean(name, total / max(float(dof.mean()), 1e-300), 1.0), ratio=True)
