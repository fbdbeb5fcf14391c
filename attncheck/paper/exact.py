"""Exact distances from the limit, and exact laws of scores, for the published experiments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_kernel
from attncheck.paper.experiments import ExactDistance
from attncheck.theory.limits.mixture import ScaleMixture
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.drivers import gamma_rule
from attncheck.theory.rates.law import default_size, finite_width_law

# Minimum number of draws: fewer cannot distinguish a divergence from 0.
_FEWEST_DRAWS = 256
_ROUNDING = 1e-12
# Numbers of quadrature nodes per χ² variable of a score. The error of a result is its difference from the result with
# the smaller number.
_NODES, _FEWER_NODES = 32, 24


def compute(target: ExactDistance, grid: FloatArray, seed: int, scale: float = 1.0) -> dict[str, Any]:
    """Compute how far outputs or scores of finite width are from the limit.

    The result has the key ``distance`` for outputs: their KL divergence from the limit, as a `Distance`. For scores,
    and for outputs if `target.curve` is not empty, it has three more keys. ``difference`` is the density minus that of
    the limit at the points `grid`, (m,); ``difference_error`` is its error, (m,); ``moments`` are the variance and the
    excess kurtosis, each followed by its error. `scale` multiplies the default number of draws.
    """
    if target.of == "scores":
        return _of_scores(target.layer, grid)
    default = default_size(target.layer)
    size = min(default, max(_FEWEST_DRAWS, round(scale * default)))
    width = math.inf if target.infinite else None
    computed = {"distance": distance(target.layer, "kl", size=size, seed=seed, width=width)}
    if not target.curve:
        return computed
    law = finite_width_law(target.layer, size=size, seed=seed)
    variance, kurtosis = (law.variance(), law.variance_error()), (law.excess_kurtosis(), law.excess_kurtosis_error())
    curve = {
        "difference": np.asarray(law.density_difference(grid)),
        "difference_error": np.asarray(law.pdf_error(grid)),
    }
    return {**computed, **curve, "moments": np.array([*variance, *kurtosis])}


def _of_scores(layer: AttentionLayer, grid: FloatArray) -> dict[str, NDArray[Any]]:
    """Return the density of a score minus that of the limit at `grid`, and the moments of the score.

    The keys of the result are those of `compute`. Errors are the difference from a computation with fewer quadrature
    nodes, plus rounding.
    """
    value, fewer = (score_difference(layer, grid, nodes) for nodes in (_NODES, _FEWER_NODES))
    many, few = (score_moments(layer, nodes) for nodes in (_NODES, _FEWER_NODES))
    return {
        "difference": value,
        "difference_error": np.abs(value - fewer) + _ROUNDING,
        "moments": np.stack([many, np.abs(many - few) + _ROUNDING], axis=1).ravel(),
    }


def score_difference(layer: AttentionLayer, grid: FloatArray, nodes: int) -> FloatArray:
    """Return the density of the score p_11 at finite width, minus that of the limit, at the points `grid`.

    For `nodes`, see `score_mixture`.
    """
    limit_std = layer.query_std * layer.key_std * float(input_kernel(layer).matrix[0, 0])
    return np.asarray(score_mixture(layer, nodes).density(grid) - gaussian(grid, limit_std**2))


def score_moments(layer: AttentionLayer, nodes: int) -> FloatArray:
    """Return variance and excess kurtosis of the score p_11 at finite width; see `score_mixture`."""
    mixture = score_mixture(layer, nodes)
    return np.array([mixture.mean(), 3.0 * mixture.variance() / mixture.mean() ** 2])


def score_mixture(layer: AttentionLayer, nodes: int) -> ScaleMixture:
    """Return the law of the score p_11 at finite width as a mixture of normals, with `nodes` nodes per χ² variable.

    If inputs h are linear, p_11 has the law of σ_Q σ_K ‖h‖²/n · χ²_n/n · √(χ²_ν/ν) · N. Here N is standard normal, n is
    the width, and ν the width of a head. Given three χ² variables, of which ‖h‖² is the first, this is normal. Inputs
    clipped at 100 differ from linear ones with a probability below 1e-100; other inputs raise `InputError`.

    Examples
    --------
    >>> mixture = score_mixture(AttentionLayer(width=256), 12)
    >>> round(mixture.mean(), 10) == round((1 + 2 / 256) ** 2, 10)
    True
    """
    if layer.activation != "identity" and (layer.activation != "clip" or layer.clip < 50 * layer.input_std):
        remedy = "use activation='identity', or 'clip' with a bound that is not reached"
        refuse("activation", layer.activation, "is a nonlinear activation", remedy)
    if layer.norm:
        refuse("norm", layer.norm, "makes all inputs equally long", "leave it out")
    hidden, hidden_mass = gamma_rule(0.5 * layer.width, nodes)
    keys, keys_mass = gamma_rule(0.5 * layer.head_width, nodes)
    lengths = np.multiply.outer(hidden, hidden).ravel() * layer.input_std**2
    scale = layer.query_std * layer.key_std * layer.score_factor
    variances = scale**2 * np.multiply.outer(lengths**2, keys).ravel()
    mass = np.multiply.outer(np.multiply.outer(hidden_mass, hidden_mass).ravel(), keys_mass).ravel()
    mask = mass > 1e-20
    return ScaleMixture(variances[mask], mass[mask], atom=0.0)


def gaussian(t: FloatArray, variance: float) -> FloatArray:
    """Return the density of N(0, variance)."""
    return np.asarray(np.exp(-0.5 * t**2 / variance) / math.sqrt(2 * math.pi * variance))
