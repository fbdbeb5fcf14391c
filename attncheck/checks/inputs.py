"""Checks of the inputs x = φ(h + e): e is a position vector, h a normal times √(χ²_n/n), common to all positions."""

from __future__ import annotations

import functools

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import Alternative, Check, Setting, positions
from attncheck.checks.declared import INPUTS, Rejected, of_law
from attncheck.checks.laws import chi_square_nodes, mixture_uniform
from attncheck.checks.reference import Reference
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Count, Uniform
from attncheck.layers import regimes
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirements import PLAIN_INPUTS, OfLayer, linear

_INPUTS, _GRAM = frozenset({"inputs"}), frozenset({"input_gram"})
# Inputs are counted if the argument h + e of the activation is beyond this many standard deviations.
_FAR = 4.0


def _far_value(layer: AttentionLayer) -> float:
    """Return φ(4σ), with φ the activation and σ the standard deviation of its argument h + e.

    The inputs are φ(h + e) before normalisation, with e the position vectors. Hence an input exceeds φ(4σ) if its h + e
    exceeds 4σ.
    """
    return float(layer.phi(np.array([_FAR * layer.hidden_std]))[0])


def _far_probability(setting: Setting) -> float:
    """Return the probability that an input's absolute value exceeds `_far_value`.

    If the activation is odd, both tails of its argument count; for relu, the upper tail only.
    """
    layer = setting.layer
    input_share, position_share = (
        np.array([[(std / layer.hidden_std) ** 2]]) for std in (layer.input_std, layer.position_std)
    )
    upper = float(mixture_uniform(np.array([-_FAR]), input_share, layer.width, position_share.item())[0])
    return upper if setting.layer.activation == "relu" else 2 * upper


_NORMAL = OfLayer("inputs h + e", linear, "the inputs are a nonlinear function of a normal times a length")
_ONE_LENGTH = (
    OfLayer(
        "inputs without position vectors",
        lambda layer: not layer.position_std,
        "the position vectors do not share the length of h",
    )
    & _NORMAL
    & OfLayer(
        "positions that are equal or uncorrelated",
        lambda layer: layer.input_correlation in (0.0, 1.0) or layer.seq_len == 1,
        "the positions are correlated",
    )
)


def _reaching(layer: AttentionLayer) -> bool:
    """Return whether the activation is not saturated yet at four standard deviations of its argument."""
    if layer.activation == "clip":
        return layer.clip > _FAR * layer.hidden_std
    return layer.activation not in ("tanh", "erf") or 1.0 - _far_value(layer) >= 1e-4


_REACHING = PLAIN_INPUTS & OfLayer(
    "an activation that preserves large inputs", _reaching, "the activation hides large inputs"
)


def _one_entry(sample: Sample) -> FloatArray:
    """Return one entry of the inputs per draw, because all entries of a draw have the length of h as a factor."""
    values = sample.need("inputs").reshape(len(sample), -1)
    draw = np.arange(len(sample))
    return values[draw, draw % values.shape[1]]


def _law(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    layer = sample.layer
    variances = np.full((len(sample), 1), layer.input_std**2)
    return (mixture_uniform(_one_entry(sample), variances, layer.width, layer.position_std**2),)


def _lengths(sample: Sample, reference: Reference) -> tuple[FloatArray]:
    """Return probability integral transforms of the squared length n tr G/σ² of the inputs.

    G is the Gram matrix of the inputs, and σ their declared standard deviation. For n neurons and s positions, the law
    of the squared length is (χ²_n/n) χ²_{ns}, or s (χ²_n/n) χ²_n if all positions are equal.
    """
    layer = sample.layer
    nodes, weights = chi_square_nodes(layer.width, 1)
    equal = layer.equal_inputs
    dof = layer.width * (1 if equal else layer.seq_len)
    trace = np.trace(sample.need("input_gram"), axis1=1, axis2=2) * layer.width / layer.input_std**2
    values = trace / layer.seq_len if equal else trace
    return (special.chdtr(dof, values[:, None] / nodes[:, 0]) @ weights,)


def _exceedances(sample: Sample, reference: Reference) -> tuple[int, int]:
    return int((np.abs(_one_entry(sample)) > _far_value(sample.layer)).sum()), len(sample)


_CAUSE = "the law of the inputs differs from the declared one: initial vector, W, activation, or a normalisation"
_check = functools.partial(Check, claim="inputs", also=positions, stage=INPUTS)

CHECKS = (
    _check(
        name="inputs.law",
        rejects=Rejected.of("limit_as_finite", on=regimes.ONE_POSITION),
        needs=_INPUTS,
        null="an input is a normal times √(χ²_n/n), plus a normal if there are position vectors",
        alternative=of_law(),
        reads="Kolmogorov distance of inputs from their law:",
        family=lambda setting: Uniform(),
        measure=_law,
        hint=_CAUSE,
        requires=_NORMAL,
    ),
    _check(
        name="inputs.lengths",
        rejects=Rejected.of("limit_as_finite", on=regimes.LINEAR),
        needs=_GRAM,
        null="n tr G/σ² is χ²_n/n times an independent χ²_{ns}",
        alternative=of_law(),
        reads="Kolmogorov distance of the inputs' squared length from its law:",
        family=lambda setting: Uniform(),
        measure=_lengths,
        hint=_CAUSE,
        requires=_ONE_LENGTH,
    ),
    _check(
        name="inputs.tail_4",
        rejects=Rejected.of("clipped_inputs", on=regimes.ONE_POSITION),
        needs=_INPUTS,
        null="inputs lie beyond 4 standard deviations of h + e as often as their law predicts",
        alternative=Alternative.of("no input beyond 4 standard deviations", 0.0),
        reads="share of inputs beyond 4 standard deviations:",
        family=lambda setting: Count(_far_probability(setting), tail="two-sided"),
        measure=_exceedances,
        hint="the inputs are clipped or truncated, or their tails are too heavy",
        requires=_REACHING,
    ),
)
