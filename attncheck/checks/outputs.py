"""Checks of outputs: their law given scores and inputs, their law at finite width, and their limit."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks import laws
from attncheck.checks.check import FEWEST_NUMBERS, Alternative, Check, Setting
from attncheck.checks.declared import GIVEN_SCORES, OUTPUTS, Rejected, of_law
from attncheck.checks.derived import NORMAL
from attncheck.checks.reference import Reference
from attncheck.checks.rotation import neighbours
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Count, Uniform
from attncheck.layers import regimes
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import A_LIMIT, NEVER_CLIPPED, SEVERAL_POSITIONS, UNTIED, OfLayer

_OUTPUTS = frozenset({"outputs"})
# Bound on the probability that a correct draw is rounded to 0.
_ZEROS = 1e-9
# From width _WIDE on, sigmoid weights do not all underflow if the standard deviation of the scores is at most
# _SMALL_SCORES.
_WIDE, _SMALL_SCORES = 8, 4.0
# Up to this standard deviation of the scores, squared sigmoid weights seldom underflow, at any width.
_MODERATE_SCORES = 8.0
_GIVEN = frozenset({"outputs", "attention", "input_gram"})


def _conditional(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    """Return the probability integral transform of one output per draw, given scores and inputs."""
    draw = np.arange(len(sample))
    position, neuron = draw % sample.layer.seq_len, (draw // sample.layer.seq_len) % sample.coordinates
    weights = sample.variance_weights[draw, position]
    values = sample.outputs[draw, position, neuron]
    valid = weights.sum(axis=1) > 0
    return (laws.mixture_uniform(values[valid], weights[valid], sample.layer.head_width),)


def _signs(sample: Sample, reference: Reference) -> tuple[int, int]:
    """Return the number of positive sums and that of nonzero sums; each sum adds a neuron's outputs over positions."""
    sums = sample.outputs.sum(axis=1)
    return int((sums > 0).sum()), int((sums != 0).sum())


def _score_scale(layer: AttentionLayer) -> float:
    return layer.query_std * layer.key_std * layer.input_scale**2


def _tame(layer: AttentionLayer) -> bool:
    """Return False if all sigmoid weights of a draw may underflow at once; True for the other attention maps."""
    wide = min(layer.width, layer.head_width) >= _WIDE
    return layer.attention_map != "sigmoid" or (wide and _score_scale(layer) <= _SMALL_SCORES)


def _may_be_constant(layer: AttentionLayer) -> bool:
    """Return whether all neurons of an input may be 0.

    With relu this happens by chance. With a layer norm it happens if all neurons have the same value before the norm,
    e.g. because all are clipped.
    """
    clipped = layer.activation == "clip" and layer.clip < NEVER_CLIPPED * layer.hidden_std
    return layer.activation == "relu" or (layer.norm == "layer" and clipped)


# If scores are larger, sigmoid weights are so small that conditional variances underflow although outputs do not.
_MODERATE_WEIGHTS = OfLayer(
    "moderate scores under sigmoid",
    lambda layer: layer.attention_map != "sigmoid" or _score_scale(layer) <= _MODERATE_SCORES,
    "sigmoid weights of scores this large underflow",
)
# Layers whose correct outputs are never 0.
_NEVER_ZERO = (
    OfLayer(
        "a map other than relu",
        lambda layer: not layer.map.traits.may_vanish,
        "all weights of a position may be 0, as with relu where no score is positive",
    )
    & OfLayer(
        "inputs that are not all 0",
        lambda layer: not _may_be_constant(layer) or 2.0**-layer.width <= _ZEROS,
        "all inputs of a narrow layer may be 0 under relu, or equal before layer norm",
    )
    & OfLayer("weights that do not underflow", _tame, "all sigmoid weights may underflow")
)


# Outputs beyond _FAR_OUT standard deviations are counted. Outputs up to _ZERO standard deviations count as 0.
_FAR_OUT, _ZERO = 4.0, 1e-12

_check = functools.partial(Check, claim="outputs", needs=_OUTPUTS, stage=OUTPUTS)


def _exceedance(setting: Setting) -> float:
    return laws.marginal_law(setting.layer, laws.last_position(setting.layer)).exceedance(_FAR_OUT)


def _exceedances(sample: Sample, reference: Reference) -> tuple[int, int]:
    std = laws.marginal_law(sample.layer, laws.last_position(sample.layer)).std
    return int((np.abs(neighbours(sample.outputs, 2)[:, -1, 0]) > _FAR_OUT * std).sum()), len(sample)


def _width_check(
    name: str,
    quantity: str,
    marginal: Callable[[AttentionLayer], laws.Scalar],
    rejects: Rejected,
    *,
    null: str,
    cause: str,
    claim: str = "outputs",
    requires: OfLayer = _MODERATE_WEIGHTS,
) -> Check:
    """Return the check that a scalar has its exact law at finite width.

    `marginal` returns the scalar for a layer, `quantity` names it in messages, and `cause` is the hint. The other
    arguments are fields of the check.
    """

    def law(layer: AttentionLayer) -> laws.MarginalLaw:
        return laws.marginal_law(layer, marginal(layer))

    def measure(sample: Sample, reference: Reference) -> tuple[FloatArray]:
        values, exact = marginal(sample.layer).values(sample), law(sample.layer)
        return (exact.uniform(values[np.abs(values) > _ZERO * exact.std]),)

    return _check(
        name=f"outputs.{name}",
        rejects=rejects,
        claim=claim,
        null=null,
        alternative=of_law(laws.LAW_ERROR),
        reads=f"Kolmogorov distance of {quantity} from its law at this width:",
        family=lambda setting: Uniform(allowance=law(setting.layer).error),
        measure=measure,
        hint=cause,
        requires=requires,
        fewest_draws=FEWEST_NUMBERS,
    )


def _limit_check(
    name: str,
    quantity: str,
    needs: frozenset[str],
    marginal: Callable[[AttentionLayer], laws.Scalar],
    rejects: Rejected,
    requires: OfLayer = ANY,
) -> Check:
    """Return the check that the law of a scalar is no further from its limit than the computed distance.

    `marginal` returns the scalar for a layer, and `quantity` names it in messages. The other arguments are fields of
    the check.
    """

    def law(layer: AttentionLayer) -> laws.MarginalLaw:
        return laws.marginal_law(layer, marginal(layer), "limit")

    def allowance(setting: Setting) -> float:
        return laws.limit_distance(setting.layer, marginal(setting.layer), setting.weights)

    def measure(sample: Sample, reference: Reference) -> tuple[FloatArray]:
        return (law(sample.layer).uniform(marginal(sample.layer).values(sample)),)

    def reason(setting: Setting) -> str:
        if law(setting.layer).mixture.atom > 0:
            return "the limit is 0 with positive probability"
        distance = allowance(setting)
        return (
            f"the law at this width is too far from the limit (Kolmogorov distance {distance:.2g})"
            if distance > _FAR
            else ""
        )

    return _check(
        name=f"outputs.{name}",
        rejects=rejects,
        claim="limit",
        kind="limit",
        needs=needs,
        null=f"{quantity} is no further from the limit than computed for this width and law of the weights",
        alternative=Alternative(
            "a law at Kolmogorov distance 0.07 beyond the computed one",
            lambda s: min(1.0, 0.07 + allowance(s)),
            coarsest=lambda s: min(1.0, 0.2 + allowance(s)),
        ),
        reads=f"Kolmogorov distance of {quantity} from the limit:",
        family=lambda setting: Uniform(allowance=allowance(setting)),
        measure=measure,
        hint="the law does not approach the theorem's limit",
        requires=A_LIMIT & requires,
        excluded=reason,
        fewest_draws=FEWEST_NUMBERS,
    )


# Checks of the limit run only if the law at the layer's width is at most this far from the limit.
_FAR = 0.05

CHECKS = (
    _check(
        name="outputs.given_scores",
        rejects=Rejected.of("shifted_outputs", on=regimes.ONE_POSITION),
        needs=_GIVEN,
        stage=GIVEN_SCORES,
        null="given scores and inputs, y_i is normal with variance Σ_a λ_a χ²_ν/ν",
        alternative=of_law(),
        reads="Kolmogorov distance of outputs from their law given scores and inputs:",
        family=lambda setting: Uniform(),
        measure=_conditional,
        hint="the attention map, mask, W_V, W_O or H^{-1/2} differ from the declared ones",
    ),
    _width_check(
        "law",
        "the last position's output",
        laws.last_position,
        Rejected.of("shifted_outputs", on=regimes.ONE_POSITION),
        null="one neuron of the last position has the exact law at the width",
        cause="the scale of the outputs differs from the declared one",
    ),
    _width_check(
        "projection",
        "a projection of all positions",
        laws.random_direction,
        Rejected.of("gaussian_outputs", on=regimes.TIED),
        null="a fixed random projection of all positions has its exact law at the width",
        cause="the covariance between positions differs: softmax axis, mask, or inputs",
        claim="outputs_joint",
        requires=SEVERAL_POSITIONS & _MODERATE_WEIGHTS,
    ),
    _check(
        name="outputs.symmetry",
        rejects=Rejected.of("shifted_outputs", on=regimes.ONE_POSITION),
        null="given scores and values, outputs of different neurons are independent and symmetric about 0",
        alternative=Alternative.of("a positive sum of positions in 55% of the draws", 0.55, coarsest=0.7),
        reads="share of positive sums over positions:",
        family=lambda setting: Count(0.5, setting.coordinates, "two-sided"),
        measure=_signs,
        hint="something is added to the outputs, such as a bias",
        any_weights=True,
    ),
    _check(
        name="outputs.zeros",
        rejects=Rejected.of("unfilled", on=regimes.STANDARD),
        claim="draws",
        null="no draw is 0 everywhere: given scores and values the outputs of Gaussian weights are normal",
        alternative=Alternative.of("one draw in 500 that is 0 everywhere", 0.002, coarsest=0.01),
        reads="share of draws that are 0 at every position and neuron:",
        family=lambda setting: Count(_ZEROS),
        measure=lambda sample, reference: (int((sample.outputs == 0.0).all(axis=(1, 2)).sum()), len(sample)),
        hint="draws were never filled in, e.g. the last part of a batch",
        requires=_NEVER_ZERO,
    ),
    _check(
        name="outputs.tail_4",
        rejects=Rejected.of("missing_head_scaling", on=regimes.RELU),
        null="|y| exceeds 4 standard deviations no more often than the exact law at the width predicts",
        alternative=Alternative("twice as many exceedances, plus 1% of the draws", lambda s: 2 * _exceedance(s) + 0.01),
        reads="share of outputs beyond 4 standard deviations:",
        family=lambda setting: Count(_exceedance(setting)),
        measure=_exceedances,
        hint="the tails are too heavy: weights or inputs of another law, or a wrong scale",
        requires=_MODERATE_WEIGHTS,
        fewest_draws=FEWEST_NUMBERS,
    ),
    _limit_check(
        "limit",
        "the last position's output",
        _OUTPUTS,
        laws.last_position,
        Rejected.of("missing_head_scaling", on=regimes.EIGHT_HEADS),
    ),
    _limit_check(
        "limit_projection",
        "a projection of all positions",
        _OUTPUTS,
        laws.random_direction,
        Rejected.of("leaking_mask", on=regimes.CAUSAL.replace(seq_len=2)),
        SEVERAL_POSITIONS,
    ),
    _limit_check(
        "limit_scores",
        "a score",
        frozenset({"outputs", "scores", NORMAL}),
        laws.one_score,
        Rejected.of("scores_over_n", on=regimes.CAUSAL),
        UNTIED,
    ),
)
