"""Exact laws at finite width, as scale mixtures of normals over exact conditional variances.

Given inputs, scores and values an output is normal; its unconditional law averages the normal over draws of
the conditional variance (Rao–Blackwell), which leaves far less noise than an empirical distribution.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.attention import AttentionLayer
from attncheck.attention_map import attention_weights
from attncheck.limits.law import limit
from attncheck.limits.mixture import ScaleMixture, condense
from attncheck.simulators import Draws, simulate_chunks

FloatArray = NDArray[np.float64]

#: What a computed cdf may be wrong by; part of the allowance of every check that uses it.
LAW_ERROR = 0.004
_DRAWS = 2_000
_MOST_DRAWS = 64 * _DRAWS
# Standard errors that the bound on the error spans: the chance of an error beyond it is below 1e-9 a point.
_SPAN = 6.0
_QUANTILES = np.linspace(0.5, 8.0, 31)


@dataclasses.dataclass(frozen=True, eq=False)
class OutputLaw:
    """The law of one projection of one neuron's outputs, with a bound on the error of its cdf."""

    mixture: ScaleMixture
    error: float

    def uniform(self, values: FloatArray) -> FloatArray:
        """Return F(y) of nonzero y given y ≠ 0: uniform under this law."""
        tail = self.mixture.upper_tail(np.abs(values)) / (1.0 - self.mixture.atom)
        return np.where(values > 0, 1.0 - tail, tail)

    @property
    def std(self) -> float:
        """The standard deviation."""
        return float(np.sqrt(self.mixture.mean()))

    def exceedance(self, multiple: float) -> float:
        """Return P(|y| > multiple · std)."""
        return float(2.0 * self.mixture.upper_tail(np.array([multiple * self.std]))[0])


def conditional_covariance(layer: AttentionLayer, draws: Draws) -> FloatArray:
    """Return Cov(y | inputs, scores, values), (draws, s, s): exact at every width."""
    if draws.value_gram is None:
        raise ValueError("the limit has no value Grams")
    weights = attention_weights(layer, draws.scores)
    scale = (layer.output_std * layer.head_factor) ** 2
    covariance: FloatArray = scale * (weights @ draws.value_gram @ weights.swapaxes(-1, -2)).sum(axis=1)
    return covariance


@functools.lru_cache(maxsize=256)
def output_law(layer: AttentionLayer, direction: tuple[float, ...]) -> OutputLaw:
    """Return the law of Σ_i direction_i y^i at the layer's width, to within `LAW_ERROR` where affordable.

    Examples
    --------
    >>> law = output_law(AttentionLayer(width=16), (1.0, 0.0, 0.0, 0.0))
    >>> law.error < LAW_ERROR, 0.3 < law.std**2 < 0.6
    (True, True)
    """
    vector = np.array(direction)
    size = _DRAWS
    while True:
        chunks = simulate_chunks(layer, size, 2_000, seed=0)
        variances = np.concatenate([_projected_variance(layer, chunk, vector) for chunk in chunks])
        mixture = condense(variances, np.ones(size))
        error = _SPAN * _standard_error(mixture) / size**0.5
        if error < LAW_ERROR or size >= _MOST_DRAWS:
            return OutputLaw(mixture, error)
        size *= 4


def _projected_variance(layer: AttentionLayer, draws: Draws, vector: FloatArray) -> FloatArray:
    covariance = conditional_covariance(layer, draws)
    variances = vector @ covariance @ vector
    # Rounding leaves a projection of a singular covariance at ±1e-17; that is the atom at 0.
    rounding = 1e-14 * np.trace(covariance, axis1=-2, axis2=-1)
    return np.where(variances > rounding, variances, 0.0)


def _standard_error(mixture: ScaleMixture) -> float:
    """Return the largest standard deviation of Φ(t/√v) over the law of v and over t."""
    points = _QUANTILES * np.sqrt(mixture.mean() / _QUANTILES[-1])
    values = special.ndtr(points[:, None] / np.sqrt(mixture.variances))
    mean = values @ mixture.weights + mixture.atom
    second = values**2 @ mixture.weights + mixture.atom
    return float(np.sqrt(np.maximum(second - mean**2, 0.0)).max())


@functools.lru_cache(maxsize=256)
def limit_distance(layer: AttentionLayer, position: int) -> float:
    """Return a bound on sup |F_n - F_∞| for one position: the computed distance plus its error."""
    direction = tuple(float(i == position) for i in range(layer.seq_len))
    law, limiting = output_law(layer, direction), limit(layer)
    points = np.concatenate([np.linspace(0.0, 6.0, 241), np.geomspace(1e-4, 0.02, 20)]) * law.std
    ours = law.mixture.upper_tail(points)
    theirs = np.asarray(limiting.sf(points, position=position))
    return float(np.abs(ours - theirs).max()) + law.error


def mixture_uniform(values: FloatArray, weights: FloatArray, dof: int) -> FloatArray:
    """Return P(√(Σ_h weight_h χ²_h) N ≤ value), χ²_h independent χ²_dof/dof: uniform under the null.

    Parameters
    ----------
    values : ndarray, shape (draws,)
    weights : ndarray, shape (draws, heads)
        Non-negative, with a positive one per draw.
    dof : int
        ν.
    """
    nodes, node_weights = _chi_square_nodes(dof, weights.shape[1])
    result = np.empty(len(values))
    step = max(1, 2**20 // len(nodes))
    for start in range(0, len(values), step):
        part = slice(start, start + step)
        scale = np.sqrt(weights[part] @ nodes.T)
        result[part] = special.ndtr(values[part, None] / scale) @ node_weights
    return result


@functools.lru_cache(maxsize=64)
def _chi_square_nodes(dof: int, heads: int) -> tuple[FloatArray, FloatArray]:
    """Return quadrature points (m, heads) of independent χ²_dof/dof variables and their weights (m,).

    One head: Gauss–Legendre in a power of the probability, which resolves the density's singularity at 0.
    Several: scrambled Sobol points, a fixed set.
    """
    if heads == 1:
        x, w = np.polynomial.legendre.leggauss(96)
        x, w = (x + 1) / 2, w / 2
        probability, weight = x**4, 4 * x**3 * w
        return (2 * special.gammaincinv(dof / 2, probability) / dof)[:, None], weight
    from scipy.stats import qmc

    points = qmc.Sobol(heads, scramble=True, rng=np.random.default_rng(0)).random(1024)
    inside = np.clip(points, 2.0**-31, 1 - 2.0**-31)
    return 2 * special.gammaincinv(dof / 2, inside) / dof, np.full(len(points), 1 / len(points))
