"""Conditional Gaussianity: given inputs, scores and values, outputs are exactly normal at every width."""

from __future__ import annotations

import functools

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks.check import Check, Setting
from attncheck.checks.claims import ONE_NEURON
from attncheck.checks.declared import GIVEN_SCORES, Rejected, of_correlation, of_direction, of_law, of_std
from attncheck.checks.matrices import VALUE, gram_checks
from attncheck.checks.reference import Reference
from attncheck.checks.rotation import rotating_pairs
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Association, Scale, Uniform
from attncheck.layers import regimes
from attncheck.layers.requirements import SEVERAL_HEADS

#: Arrays that determine the law of the outputs given scores and values.
VALUES_GIVEN = frozenset({"outputs", "attention", "value_gram"})


def residuals(setting: Setting) -> int:
    """Return the number of whitened outputs per draw."""
    return setting.output_rank * setting.coordinates


def _joint(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    """Return the probability integral transform (PIT) of each draw's sum of squared whitened outputs, (draws,)."""
    squares, dof = sample.output_residual.squares()
    valid = dof > 0
    return (special.chdtr(dof[valid], squares[valid]),)


def _head_shares(sample: Sample, reference: Reference) -> tuple[FloatArray, FloatArray]:
    """Return the size of each draw's whitened outputs, and a weighted sum of the heads' shares in their covariance.

    The outputs' covariance Σ_y, given scores and values, is a sum over heads. The share of a head is the trace of its
    term in this sum, multiplied by Σ_y^{-1}. The weights of the shares are random numbers, the same in all draws; the
    weighted sum is centred over the draws.
    """
    layer, residual = sample.layer, sample.output_residual
    weights = sample.weights
    parts = weights @ sample.need("value_gram") @ weights.swapaxes(-1, -2)
    with np.errstate(over="ignore"):  # the inverse of a tiny covariance is infinite, and its draw is left out below
        inverse = np.linalg.pinv(parts.sum(axis=1), rcond=1e-9, hermitian=True)
    mixture = stream(0, "head shares", layer.num_heads).standard_normal(layer.num_heads)
    share = np.einsum("dij,dhji,h->d", inverse, parts, mixture)
    valid = residual.kept.any(axis=(1, 2)) & np.isfinite(share)
    mean = share[valid].mean() if valid.any() else 0.0
    return residual.energy_scores(1)[valid], share[valid] - mean


_check = functools.partial(Check, claim="conditional", needs=VALUES_GIVEN, stage=GIVEN_SCORES)

CHECKS = (
    _check(
        name="conditional.scale",
        rejects=Rejected.of("missing_head_scaling", on=regimes.STANDARD),
        null="given scores and values, y[:, c] is N(0, Σ_y): the whitened squares add up to a chi-square",
        alternative=of_std(),
        reads="output variance given scores and values, observed over declared:",
        family=lambda setting: Scale(residuals(setting)),
        measure=lambda sample, reference: sample.output_residual.squares(),
        hint="W_O, H^{-1/2}, the attention map, its axis or the mask differ from the declared ones",
    ),
    _check(
        name="conditional.law",
        rejects=Rejected.of("softmax_over_columns", on=regimes.OVER_N),
        null="Σ_y^{-1/2} y[:, c] has independent N(0, 1) entries",
        alternative=of_law(),
        reads="Kolmogorov distance of the whitened outputs from N(0, 1):",
        family=lambda setting: Uniform(per_draw=residuals(setting)),
        measure=lambda sample, reference: sample.output_residual.uniform(),
        hint="outputs are not Gaussian given the scores: W_O of another law, or other scores were used",
    ),
    _check(
        name="conditional.joint",
        rejects=Rejected.of("output_std_5", on=regimes.STANDARD),
        null="|Σ_y^{-1/2} y|² of each draw is chi-square",
        alternative=of_law(),
        reads="Kolmogorov distance of the draws' whitened squares from chi-square:",
        family=lambda setting: Uniform(),
        measure=_joint,
        hint="a scale that varies from draw to draw remains after conditioning on the scores",
    ),
    _check(
        name="conditional.neurons",
        rejects=Rejected.of("shifted_outputs", on=regimes.LINEAR),
        null="given scores and values, different neurons are independent",
        alternative=of_correlation("between neurons"),
        reads="standardised covariance of whitened outputs between neurons:",
        family=lambda setting: Association(setting.output_rank * (setting.coordinates // 2)),
        measure=lambda sample, reference: rotating_pairs(sample.output_residual, 2),
        hint="rows of W_O are not independent, or neurons repeat",
        excluded=lambda setting: "" if setting.coordinates > 1 else ONE_NEURON,
    ),
    _check(
        name="conditional.positions",
        rejects=Rejected.of("first_position_added", on=regimes.STANDARD),
        null="the whitened outputs of different positions are uncorrelated: the off-diagonal entries of Σ_y are right",
        alternative=of_correlation("between whitened positions"),
        reads="standardised covariance of whitened positions:",
        family=lambda setting: Association(max(1, setting.output_rank // 2 * setting.coordinates)),
        measure=lambda sample, reference: rotating_pairs(sample.output_residual, 1),
        hint="the attention map, its axis or the mask differ from the declared ones",
        excluded=lambda setting: "there is one position only" if setting.output_rank == 1 else "",
    ),
    _check(
        name="conditional.shift",
        rejects=Rejected.of("shifted_outputs", on=regimes.LINEAR),
        null="the whitened outputs have mean 0 along the direction that a constant added to the outputs would have",
        alternative=of_direction("with that direction"),
        reads="mean of the whitened outputs along the direction of an added constant:",
        family=lambda setting: Association(residuals(setting)),
        measure=lambda sample, reference: sample.output_residual.paired_with(sample.shift_direction),
        hint="something is added to the outputs, such as a bias",
    ),
    _check(
        name="conditional.head_shares",
        rejects=Rejected.of("uneven_heads", on=regimes.NARROW),
        claim="heads",
        null="the size of the whitened output is independent of the heads' contributions",
        alternative=of_correlation("with a mixture of the heads' shares"),
        reads="standardised covariance of the size of whitened outputs with the heads' shares of their covariance:",
        family=lambda setting: Association(),
        measure=_head_shares,
        hint="the scale of W_O differs between heads",
        requires=SEVERAL_HEADS,
    ),
    *gram_checks(
        "conditional.value",
        "values",
        VALUE,
        (
            Rejected.of("value_std_5", on=regimes.LINEAR),
            Rejected.of("value_std_5", on=regimes.LINEAR),
            Rejected.of("interleaved_groups", on=regimes.CAUSAL),
            Rejected.of("fresh_group_keys", on=regimes.CAUSAL),
        ),
    ),
)
