"""What is wrong, in words and numbers: estimates that a person can compare with the declaration.

A diagnosis explains a verdict and is none: its intervals are the usual normal ones, on a fresh sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attncheck.attention_map import visible
from attncheck.checks.sample import Sample
from attncheck.evidence.streams import seed_sequence, stream
from attncheck.simulators import simulate
from attncheck.subject import Subject
from attncheck.unit import Unit

FloatArray = NDArray[np.float64]

_SIZE = 4_000
# Entries of a diagnosis' largest array.
_ENTRIES = 2**21
_QUANTILE = 2.576


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A quantity, observed with a 99% interval, and what the layer declares."""

    name: str
    value: float
    low: float
    high: float
    declared: float

    @property
    def differs(self) -> bool:
        """Whether the declared value lies outside the interval."""
        return not self.low <= self.declared <= self.high

    def __str__(self) -> str:
        return f"{self.name} {self.value:.3g} [{self.low:.3g}, {self.high:.3g}], declared {self.declared:.3g}"


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
    stored = layer.num_heads * layer.seq_len**2 + layer.seq_len * layer.width
    size = max(64, min(_SIZE, _ENTRIES // stored, 100_000_000 // layer.weight_entries))
    key = (unit.property_name, layer.to_dict())
    sample = subject.draw(layer, size, stream(seed, *key, role="diagnosis"))
    return differences(sample, seed_sequence(seed, *key, role="diagnosis/reference"))


def differences(sample: Sample, seed: np.random.SeedSequence) -> list[str]:
    """Return the estimates from a sample that differ from the declaration, each a sentence.

    Parameters
    ----------
    sample : Sample
    seed : numpy.random.SeedSequence
        For draws of the exact law to compare with, four times as many.
    """
    exact = simulate(sample.layer, 4 * len(sample), seed)
    reference = Sample(sample.layer, exact.outputs, scores=exact.scores)
    return [str(estimate) for estimate in _estimates(sample, reference) if estimate.differs]


def _estimates(sample: Sample, reference: Sample) -> Iterator[Estimate]:
    """Yield what the exposure allows, the most telling first."""
    if sample.scores is not None:
        yield from _score_estimates(sample, reference)
    if {"input_gram", "key_gram"} <= sample.exposed:
        yield _ratio("key variance", sample.key_energy())
    if {"input_gram", "value_gram"} <= sample.exposed:
        yield _ratio("value variance", sample.value_energy())
    if {"scores", "value_gram"} <= sample.exposed:
        yield _ratio("output variance given scores and values", sample.output_residual.squares())
    yield _compared("output variance", _mean_square(sample.outputs), _mean_square(reference.outputs))
    means = sample.outputs.mean(axis=(1, 2))
    yield _mean("mean of the outputs", means, 0.0)


def _score_estimates(sample: Sample, reference: Sample) -> Iterator[Estimate]:
    seen = visible(sample.layer)
    if {"scores", "input_gram"} <= sample.exposed:
        diagonal = np.diagonal(sample.need("input_gram"), axis1=1, axis2=2)
        std = sample.layer.query_std * sample.layer.key_std * sample.layer.score_factor
        declared = std**2 * (diagonal[:, None, :, None] * diagonal[:, None, None, :])
        ratio = np.divide(
            sample.need("scores") ** 2, declared, out=np.zeros_like(sample.need("scores")), where=declared > 0
        )
        yield _mean("score variance given the inputs, over the declared", ratio[..., seen].mean(axis=(1, 2)), 1.0)
    else:
        ours, theirs = (_mean_square(each.need("scores")[..., seen]) for each in (sample, reference))
        yield _compared("score variance", ours, theirs)
    diagonal_scores = np.diagonal(sample.need("scores"), axis1=2, axis2=3)
    yield _mean("mean score of a position with itself", diagonal_scores.mean(axis=(1, 2)), 0.0)


def _mean_square(values: FloatArray) -> FloatArray:
    return np.asarray((values**2).reshape(len(values), -1).mean(axis=1))


def _mean(name: str, values: FloatArray, declared: float) -> Estimate:
    half = _QUANTILE * float(values.std()) / len(values) ** 0.5
    mean = float(values.mean())
    return Estimate(name, mean, mean - half, mean + half, declared)


def _compared(name: str, ours: FloatArray, theirs: FloatArray) -> Estimate:
    """Compare with the mean over a larger sample of the exact law, whose error widens the interval."""
    half = _QUANTILE * float(np.hypot(ours.std() / len(ours) ** 0.5, theirs.std() / len(theirs) ** 0.5))
    mean = float(ours.mean())
    return Estimate(name, mean, mean - half, mean + half, float(theirs.mean()))


def _ratio(name: str, squares: tuple[FloatArray, FloatArray]) -> Estimate:
    """Estimate a variance ratio from sums of squares and degrees of freedom."""
    total, dof = (part.reshape(len(part), -1).sum(axis=1) for part in squares)
    estimate = _mean(f"{name}, over the declared", total / max(float(dof.mean()), 1e-300), 1.0)
    return estimate
