"""Outputs: their law given scores and inputs, their law at the width, and against the limit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.check import Check, Departure, Setting
from attncheck.checks.laws import LAW_ERROR, limit_distance, mixture_uniform, output_law
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Count, Smooth, Uniform
from attncheck.evidence.streams import stream
from attncheck.limits.law import limit

FloatArray = NDArray[np.float64]

_OUTPUTS = frozenset({"outputs"})
_GIVEN = frozenset({"outputs", "scores", "input_gram"})


def last_position(setting: Setting) -> tuple[float, ...]:
    """Return the direction that picks the last position, which sees all others under any mask."""
    return tuple(float(i == setting.layer.seq_len - 1) for i in range(setting.layer.seq_len))


def random_direction(setting: Setting) -> tuple[float, ...]:
    """Return a unit direction over the positions, fixed by the layer."""
    vector = stream(0, "direction", setting.layer.to_dict()).standard_normal(setting.layer.seq_len)
    return tuple(float(x) for x in vector / np.linalg.norm(vector))


def _setting(sample: Sample) -> Setting:
    return Setting(sample.layer, sample.exposed, sample.coordinates)


def _given_scores(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    """Return PITs of one output per draw, over all positions and neurons in turn, given scores and inputs."""
    draw = np.arange(len(sample))
    position, neuron = draw % sample.layer.seq_len, (draw // sample.layer.seq_len) % sample.coordinates
    weights = sample.variance_weights[draw, position]
    values = sample.outputs[draw, position, neuron]
    seen = weights.sum(axis=1) > 0
    return (mixture_uniform(values[seen], weights[seen], sample.layer.head_width),)


def _projected(sample: Sample, direction: tuple[float, ...]) -> tuple[FloatArray]:
    values = sample.outputs[:, :, 0] @ np.array(direction)
    return (output_law(sample.layer, direction).uniform(values[values != 0.0]),)


def _against_limit(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    values = sample.outputs[:, -1, 0]
    cdf = limit(sample.layer).cdf(values, position=sample.layer.seq_len - 1)
    return (np.asarray(cdf),)


def _signs(sample: Sample, reference: Reference) -> tuple[int, int]:
    """Return how many of the draws' sums over positions are positive, of those that are not 0."""
    sums = sample.outputs.sum(axis=1)
    return int((sums > 0).sum()), int((sums != 0).sum())


def _exceedances(multiple: float) -> Check:
    def probability(setting: Setting) -> float:
        return output_law(setting.layer, last_position(setting)).exceedance(multiple)

    def count(sample: Sample, reference: Reference) -> tuple[int, int]:
        std = output_law(sample.layer, last_position(_setting(sample))).std
        return int((np.abs(sample.outputs[:, -1, 0]) > multiple * std).sum()), len(sample)

    return Check(
        name=f"outputs.tail_{multiple:g}",
        claim="outputs",
        kind="exact",
        needs=_OUTPUTS,
        null=f"|y| exceeds {multiple:g} standard deviations as often as the exact law at the width says",
        departure=Departure("as many exceedances again, plus 1% of the draws", lambda s: 2 * probability(s) + 0.01),
        reads=f"share of outputs beyond {multiple:g} standard deviations:",
        family=lambda setting: Count(probability(setting)),
        measure=count,
        hint="the tails are too heavy: weights or inputs of another law, or a wrong scale",
    )


def _many_zeros(setting: Setting) -> str:
    atom = output_law(setting.layer, last_position(setting)).mixture.atom
    return "the output is 0 with positive probability" if atom > 0 else ""


def _limit_excluded(setting: Setting) -> str:
    if _many_zeros(setting):
        return _many_zeros(setting)
    distance = limit_distance(setting.layer, setting.layer.seq_len - 1)
    return f"the exact law is {distance:.2g} from the limit at this width" if distance > 0.05 else ""


_SUP = "a law at Kolmogorov distance 0.05"

CHECKS = (
    Check(
        name="outputs.given_scores",
        claim="outputs",
        kind="exact",
        needs=_GIVEN,
        null="given scores and inputs, y_i is normal with variance Σ_a λ_a χ²_ν/ν",
        departure=Departure.of(_SUP, 0.05),
        reads="Kolmogorov distance of outputs from their law given scores and inputs:",
        family=lambda setting: Uniform(),
        measure=_given_scores,
        hint="the attention map, mask, W_V, W_O or H^{-1/2} differ from the declared ones",
    ),
    Check(
        name="outputs.given_scores_spread",
        claim="outputs",
        kind="exact",
        needs=_GIVEN,
        null="the same, examined for a wrong spread",
        departure=Departure.of("a standard deviation off by about 7%", 0.1),
        reads="spread component of outputs given scores (0 is right, above 0 too wide):",
        family=lambda setting: Smooth(2),
        measure=_given_scores,
        hint="W_V, W_O or H^{-1/2} differ from the declared ones",
    ),
    Check(
        name="outputs.law",
        claim="outputs",
        kind="exact",
        needs=_OUTPUTS,
        null="one neuron of the last position has the exact law at the width",
        departure=Departure.of(_SUP, 0.05 + LAW_ERROR),
        reads="Kolmogorov distance of the last position's output from its law at this width:",
        family=lambda setting: Uniform(allowance=output_law(setting.layer, last_position(setting)).error),
        measure=lambda sample, reference: _projected(sample, last_position(_setting(sample))),
        hint="the scale of the outputs differs from the declared one",
    ),
    Check(
        name="outputs.projection",
        claim="outputs_joint",
        kind="exact",
        needs=_OUTPUTS,
        null="a fixed random projection of all positions has its exact law at the width",
        departure=Departure.of(_SUP, 0.05 + LAW_ERROR),
        reads="Kolmogorov distance of a projection of all positions from its law at this width:",
        family=lambda setting: Uniform(allowance=output_law(setting.layer, random_direction(setting)).error),
        measure=lambda sample, reference: _projected(sample, random_direction(_setting(sample))),
        hint="the covariance between positions differs: softmax axis, mask, or inputs",
        excluded=lambda setting: "there is one position only" if setting.layer.seq_len == 1 else "",
    ),
    Check(
        name="outputs.symmetry",
        claim="outputs",
        kind="exact",
        needs=_OUTPUTS,
        null="given scores and values the outputs are symmetric, independently over neurons: fair signs",
        departure=Departure.of("a positive sum of positions in 55% of the draws", 0.55),
        reads="share of positive sums over positions:",
        family=lambda setting: Count(0.5, setting.coordinates, "two-sided"),
        measure=_signs,
        hint="something is added to the outputs, such as a bias",
    ),
    _exceedances(4.0),
    _exceedances(6.0),
    _exceedances(8.0),
    Check(
        name="outputs.limit",
        claim="limit",
        kind="limit",
        needs=_OUTPUTS,
        null="one neuron of the last position is no further from the limit than the exact law at the width",
        departure=Departure(
            "a law at 0.05 beyond the distance computed for this width",
            lambda setting: 0.05 + limit_distance(setting.layer, setting.layer.seq_len - 1),
        ),
        reads="Kolmogorov distance from the limit law (allowed: the computed distance at this width):",
        family=lambda setting: Uniform(allowance=limit_distance(setting.layer, setting.layer.seq_len - 1)),
        measure=_against_limit,
        hint="the outputs do not approach the theorem's limit",
        excluded=_limit_excluded,
    ),
)
