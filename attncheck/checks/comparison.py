"""Exactness: the joint law of a draw, functional by functional, against the exact law at the same width."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import AttentionLayer
from attncheck.checks.check import Check, Departure
from attncheck.checks.functionals import FUNCTIONALS, Functional
from attncheck.checks.reference import RATIO, Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.families import TwoSample
from attncheck.simulators import simulate

FloatArray = NDArray[np.float64]

_ENERGY = "output_energy"
# Draws on which the distance between the exact law and the matched Gaussian is computed.
_DISTANCE_DRAWS = 10_000


def _claim(functional: Functional) -> str:
    if functional.needs == {"scores"}:
        return "scores"
    return "outputs" if functional.needs == {"outputs"} else "independence"


def _exactness(functional: Functional) -> Check:
    def measure(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
        return functional.compute(sample.layer, sample), reference.functionals[functional.name]

    return Check(
        name=f"exactness.{functional.name}",
        claim=_claim(functional),
        kind="exact",
        needs=functional.needs | {"outputs"},
        null=f"{functional.name} has the law of the exact reading at the same width",
        departure=Departure.of("a law at Kolmogorov distance 0.06", 0.06),
        reads=f"Kolmogorov distance of {functional.name} from the exact law:",
        family=lambda setting: TwoSample(RATIO),
        measure=measure,
        hint="the joint law of inputs, scores and outputs differs from the declared layer's",
        excluded=lambda setting: functional.excluded(setting.layer, setting.coordinates),
    )


def _energy(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    values = np.maximum((sample.outputs[:, :, 0] ** 2).sum(axis=1), 1e-300)
    return np.log(values), reference.functionals[_ENERGY]


@functools.lru_cache(maxsize=256)
def gaussian_distance(layer: AttentionLayer) -> float:
    """Return the Kolmogorov distance of log Σ_i y_i² between the exact law and the matched Gaussian.

    Computed on draws from a stream of its own; the sampling error, 0.35/√draws, is taken off so that a
    plan never counts on a distance that is only noise.
    """
    rng = np.random.default_rng(0)
    exact = simulate(layer, _DISTANCE_DRAWS, seed=1).outputs[:, :, 0]
    root = np.linalg.cholesky(np.cov(exact.T).reshape(layer.seq_len, -1) + 1e-12 * np.eye(layer.seq_len))
    matched = rng.standard_normal(exact.shape) @ root.T
    ours, theirs = (np.sort((y**2).sum(axis=1)) for y in (exact, matched))
    points = np.concatenate([ours, theirs])
    gap = np.searchsorted(ours, points, "right") - np.searchsorted(theirs, points, "right")
    noise = 0.6 * math.sqrt(2 / len(exact))
    return max(0.0, float(np.abs(gap).max()) / len(exact) - noise)


CHECKS = (
    *(_exactness(functional) for functional in FUNCTIONALS),
    Check(
        name="non_gaussianity.output_energy",
        claim="non_gaussianity",
        kind="exact",
        needs=frozenset({"outputs"}),
        null="log Σ_i y_i² has the law of the exact reading, which is not that of the matched Gaussian",
        departure=Departure(
            "the Gaussian of the same covariance in place of the hierarchical law",
            lambda setting: gaussian_distance(setting.layer),
        ),
        reads="Kolmogorov distance of log Σ y² from the exact law:",
        family=lambda setting: TwoSample(RATIO),
        measure=_energy,
        hint="the outputs are Gaussian, as with infinitely many heads or scores scaled by 1/n",
    ),
)
