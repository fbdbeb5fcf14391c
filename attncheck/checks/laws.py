"""Laws of single outputs, projected outputs and scores, computed as scale mixtures of normals.

Outputs and scores are conditionally normal. Averaging the normal law over draws of the conditional variance
(Rao–Blackwell) has far less noise than an empirical distribution.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray, slices
from attncheck._lib.streams import stream
from attncheck.checks.rotation import neighbours
from attncheck.checks.sample import Arrays
from attncheck.evidence.distances import band, one_sample_distance
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.layers.kernel import input_kernel
from attncheck.layers.parts.position_bias import mean_offset
from attncheck.layers.parts.qk_norm import score_kernel
from attncheck.methods import drawn_blocks
from attncheck.simulators.collapsed import GRAMS
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws, draw_with_weights
from attncheck.theory.limit import limit
from attncheck.theory.limits.covariance import output_factor
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.limits.rows import score_std

_Method = Literal["collapsed", "limit"]

#: Target error of a computed cdf. Every check that uses such a cdf allows for this error.
LAW_ERROR = 0.004
# Factor on the number of draws, because the estimated error is itself uncertain.
_SPARE = 1.15
_DRAWS = 2_000
_MOST_DRAWS = 64 * _DRAWS
# Number of entries in the first draws of a law. With so many draws, the allowance that `exceedance` makes for undrawn
# variances is small.
_TAIL_ENTRIES = 30_000_000
# _LAW_COST is the maximum cost of all draws of a law, in units of about half a nanosecond.
_LAW_COST, _FEWEST_DRAWS = 2_000_000_000, 100
# Number of standard errors in an error bound: at each point, a larger error has a probability below 1e-8.
_SPAN = 6.0
# A further variance exceeds the largest of N drawn ones with probability at most _NOT_DETECTED/N. This bound holds with
# confidence 1 - e^-18.
_NOT_DETECTED = 18.0
_POINTS = 128
# Draws of an empirical law, for non-Gaussian weights, and their maximum cost in matrix entries.
_EMPIRICAL_DRAWS = 60_000
_EMPIRICAL_ENTRIES = 400_000_000
_LEAST_VARIANCE = 1e-300
# If the standard deviation in the median draw is below this share of that of the whole law, laws are compared at both
# scales.
_RARE = 0.05
# Probability that an empirical distribution function leaves its confidence band.
_BAND_ERROR = 1e-8


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A number computed from each draw: a linear combination of one neuron's outputs over positions, or a score.

    Attributes
    ----------
    direction : tuple of float
        Weights of the positions; empty for a score.
    entry : tuple of int
        Indices (head, i, j) of a score; negative ones count from the end.
    mean : float
        Mean of the score, subtracted from it.
    """

    direction: tuple[float, ...] = ()
    entry: tuple[int, int, int] = (0, -1, 0)
    mean: float = 0.0

    def values(self, arrays: Arrays) -> FloatArray:
        """Return the values of this scalar, (draws,)."""
        if self.direction:
            return np.asarray(neighbours(arrays.outputs, 2)[:, :, 0] @ np.array(self.direction))
        assert arrays.scores is not None
        head, i, j = self.entry
        return np.asarray(arrays.scores[:, head, i, j] - self.mean)

    def variances(self, layer: AttentionLayer, draws: Draws, weights: FloatArray) -> FloatArray:
        """Return the conditional variance of each draw, at finite width or (without Gram matrices) in the limit.

        `weights` are the attention weights (draws, heads, positions, positions); scores do not need them.
        """
        if not self.direction:
            return self._score_variances(layer, draws)
        rows = np.array(self.direction) @ weights
        if draws.value_gram is None:
            scale, grams = output_factor(layer), input_kernel(layer).matrix
        else:
            scale, grams = (layer.output_std * layer.head_factor) ** 2, draws.value_gram
        variances: FloatArray = scale * ((rows[..., None, :] @ grams)[..., 0, :] * rows).sum(axis=(1, 2))
        # Variances that are rounding errors become 0, an atom of the law.
        lengths = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
        rounding = 1e-14 * scale * ((np.abs(rows) * lengths).sum(axis=2) ** 2).sum(axis=1)
        return np.where(variances > rounding, variances, 0.0)

    def limit_score_variance(self, layer: AttentionLayer) -> float:
        """Return the variance of a score in the limit, where it is normal."""
        _, i, j = self.entry
        kernel = score_kernel(layer, input_kernel(layer).matrix)
        return float(score_std(layer) ** 2 * (kernel[i, i] * kernel[j, j])) + layer.bias_std**2

    def _score_variances(self, layer: AttentionLayer, draws: Draws) -> FloatArray:
        head, i, j = self.entry
        if draws.input_gram is None or draws.key_gram is None:
            return np.full(len(draws), self.limit_score_variance(layer))
        scale = (layer.query_std * layer.score_factor) ** 2
        return np.asarray(scale * draws.input_gram[:, i, i] * draws.key_gram[:, head, j, j] + layer.bias_std**2)


def last_position(layer: AttentionLayer) -> Scalar:
    """Return one neuron's output at the last position, from which a causal mask hides nothing."""
    return Scalar(tuple(float(i == layer.seq_len - 1) for i in range(layer.seq_len)))


@functools.lru_cache(maxsize=256)
def random_direction(layer: AttentionLayer) -> Scalar:
    """Return one neuron's outputs projected on a random unit vector over positions.

    The vector depends on the layer only.
    """
    vector = stream(0, "direction", layer.key).standard_normal(layer.seq_len)
    return Scalar(tuple(float(x) for x in vector / np.linalg.norm(vector)))


def one_score(layer: AttentionLayer) -> Scalar:
    """Return the first head's score of the last position with the first position that is visible to it."""
    entry = (0, -1, int(np.argmax(layer.visible[-1])))
    shape = (layer.num_heads, layer.seq_len, layer.seq_len)
    return Scalar(entry=entry, mean=float(np.broadcast_to(mean_offset(layer), shape)[entry]))


def usual(layer: AttentionLayer) -> tuple[Scalar, ...]:
    """Return the scalars whose laws are tested on every layer: an output, a projection of outputs, and a score."""
    return last_position(layer), random_direction(layer), one_score(layer)


def conditional_covariance(layer: AttentionLayer, draws: Draws) -> FloatArray:
    """Return the covariance of one neuron's outputs given inputs, scores and values, (draws, positions, positions).

    It is that of the limit if the draws have no Gram matrices of values.
    """
    if draws.value_gram is None:
        return limit(layer).conditional_covariance(draws.scores)
    weights = layer.attention_weights(draws.scores)
    scale = (layer.output_std * layer.head_factor) ** 2
    covariance: FloatArray = scale * (weights @ draws.value_gram @ weights.swapaxes(-1, -2)).sum(axis=1)
    return covariance


@dataclasses.dataclass(frozen=True, eq=False)
class MarginalLaw:
    """The law of a `Scalar`: a mixture of normal laws over `size` drawn conditional variances.

    `error` bounds the error of its distribution function.
    """

    mixture: ScaleMixture
    error: float
    size: int

    def uniform(self, values: FloatArray) -> FloatArray:
        """Return the cdf of this law, given that the scalar is not 0, at nonzero `values`: uniform under the law."""
        tail = self.mixture.upper_tail(np.abs(values)) / (1.0 - self.mixture.atom)
        return np.where(values > 0, 1.0 - tail, tail)

    @property
    def std(self) -> float:
        """The standard deviation of the law."""
        return float(np.sqrt(self.mixture.mean()))

    def exceedance(self, multiple: float) -> float:
        """Return an upper bound of P(|y| > multiple · std) for the scalar y.

        It allows for sampling error, and for conditional variances that were not drawn.
        """
        tails: FloatArray = 2.0 * special.ndtr(-multiple * self.std / np.sqrt(self.mixture.variances))
        mean = float(tails @ self.mixture.weights)
        second = float(tails**2 @ self.mixture.weights)
        spread = math.sqrt(max(0.0, second - mean**2))
        return min(1.0, mean + _SPAN * spread / math.sqrt(self.size) + _NOT_DETECTED / self.size)


@functools.lru_cache(maxsize=256)
def marginal_law(layer: AttentionLayer, marginal: Scalar, method: _Method = "collapsed") -> MarginalLaw:
    """Compute the law of a scalar by a method, with a cdf error below `LAW_ERROR` if enough draws are affordable.

    Examples
    --------
    >>> law = marginal_law(AttentionLayer(width=16), last_position(AttentionLayer(width=16)))
    >>> law.error < LAW_ERROR, 0.3 < law.std**2 < 0.6
    (True, True)
    """
    if method == "limit" and not marginal.direction:  # the limit of a score is normal
        variance = marginal.limit_score_variance(layer)
        return MarginalLaw(condense(np.full(_DRAWS, variance), np.ones(_DRAWS)), 0.0, _DRAWS)
    return _laws(layer, method)[marginal]


@functools.lru_cache(maxsize=256)
def _laws(layer: AttentionLayer, method: _Method) -> dict[Scalar, MarginalLaw]:
    """Compute the laws of several scalars from common draws, adding draws until all errors are below `LAW_ERROR`.

    The number of draws is at most that of `affordable_draws`.
    """
    marginals = usual(layer)[: 2 if method == "limit" else 3]
    most = affordable_draws(layer, _MOST_DRAWS, method)
    size = min(first_draws(layer, method), most)
    blocks: list[FloatArray] = []
    grams = frozenset({"value_gram"}) if method == "limit" else GRAMS
    while True:
        # All blocks but the last are complete and can be reused.
        del blocks[-1:]
        for draws in drawn_blocks(layer, size, 0, method, grams=grams, outputs=False, first=len(blocks)):
            weights = layer.attention_weights(draws.scores)
            blocks.append(np.array([marginal.variances(layer, draws, weights) for marginal in marginals]))
        laws = tuple(_law(variances) for variances in np.concatenate(blocks, axis=1))
        error = max(law.error for law in laws)
        if error < LAW_ERROR or size >= most:
            return dict(zip(marginals, laws, strict=True))
        size = _more_draws(size, error, most)


def first_draws(layer: AttentionLayer, method: _Method) -> int:
    """Return the initial number of draws for a law."""
    if method == "limit":
        return _DRAWS
    per_draw = layer.seq_len * layer.width + 40 * layer.num_heads * layer.seq_len**2
    return max(2 * _DRAWS, min(_MOST_DRAWS, _TAIL_ENTRIES // per_draw))


def _more_draws(size: int, error: float, most: int) -> int:
    """Return the number of draws, at most `most`, that reduces the error of a law to `LAW_ERROR`.

    `error` is the error with `size` draws. Errors fall as 1/√size.

    Examples
    --------
    >>> _more_draws(2_000, 0.006, 128_000), _more_draws(2_000, 0.012, 128_000), _more_draws(2_000, 0.012, 20_000)
    (5175, 20700, 20000)
    """
    return min(most, math.ceil(_SPARE * size * (error / LAW_ERROR) ** 2))


def affordable_draws(layer: AttentionLayer, most: int, method: _Method = "collapsed") -> int:
    """Return the number of draws for a precomputed law: `most`, or fewer if draws are expensive.

    Examples
    --------
    >>> affordable_draws(AttentionLayer(width=64), 10_000), affordable_draws(AttentionLayer(width=10**6), 10_000)
    (10000, 100)
    """
    rank = layer.seq_len if method == "limit" else min(layer.seq_len, layer.width)
    per_draw = 10 * layer.seq_len * layer.width + (40 + rank) * layer.num_heads * layer.seq_len**2
    return min(most, max(_FEWEST_DRAWS, _LAW_COST // per_draw))


def _law(variances: FloatArray) -> MarginalLaw:
    """Return the mixture of normal laws with these conditional variances."""
    mixture = condense(variances, np.ones(len(variances)))
    return MarginalLaw(mixture, _error(mixture, len(variances)), len(variances))


def _error(mixture: ScaleMixture, size: int) -> float:
    """Return the error bound of a cdf, `_SPAN` standard errors at the point where they are largest.

    The cdf at t is the mean of Φ(t/√v) over `size` conditional variances v.
    """
    positive = size * (1.0 - mixture.atom)
    if not mixture.variances.size:
        return 0.0
    roots, weights = np.sqrt(mixture.variances), mixture.weights / (1.0 - mixture.atom)
    points = np.geomspace(0.1 * roots.min(), 10.0 * roots.max(), _POINTS)
    values = special.ndtr(points[:, None] / roots)
    mean, second = values @ weights, values**2 @ weights
    return _SPAN * float(np.sqrt(np.maximum(second - mean**2, 0.0)).max() / np.sqrt(positive))


@functools.lru_cache(maxsize=256)
def limit_distance(layer: AttentionLayer, marginal: Scalar, weights: WeightLaws = GAUSSIAN_LAWS) -> float:
    """Return a bound on the Kolmogorov distance between a scalar's law at the layer's width and its limit law.

    The bound is the computed distance plus the errors of both laws. For non-Gaussian weights, the law at the width is
    the empirical law of draws by explicit weight matrices.
    """
    limiting = marginal_law(layer, marginal, "limit")
    if not weights.gaussian:
        return _empirical_distance(layer, marginal, weights, limiting) + limiting.error
    law = marginal_law(layer, marginal)
    grid = np.concatenate([np.linspace(0.0, 6.0, 241), np.geomspace(1e-4, 0.02, 20)])
    points = np.outer(_scales(law), grid).ravel()
    ours, theirs = (distribution.mixture.upper_tail(points) for distribution in (law, limiting))
    return float(np.abs(ours - theirs).max()) + law.error + limiting.error


def _scales(law: MarginalLaw) -> list[float]:
    """Return the standard deviation of a law and, if rare draws dominate it, the square root of the median variance."""
    variances, weights = law.mixture.variances, law.mixture.weights
    order = np.argsort(variances)
    middle = np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())
    typical = float(np.sqrt(variances[order][min(middle, len(order) - 1)])) if len(order) else law.std
    return [law.std, typical] if typical < _RARE * law.std else [law.std]


def _empirical_distance(layer: AttentionLayer, marginal: Scalar, weights: WeightLaws, limiting: MarginalLaw) -> float:
    values = _literal_values(layer, weights)[usual(layer).index(marginal)]
    return one_sample_distance(np.sort(limiting.uniform(values))) + band(len(values), _BAND_ERROR)


@functools.lru_cache(maxsize=8)
def _literal_values(layer: AttentionLayer, weights: WeightLaws) -> FloatArray:
    """Return the values of several scalars in draws by explicit weight matrices, (marginals, draws)."""
    size = max(100, min(_EMPIRICAL_DRAWS, _EMPIRICAL_ENTRIES // layer.weight_entries))
    rng = np.random.default_rng(0)
    step = max(1, 2**19 // layer.weight_entries)
    draws = (draw_with_weights(layer, min(step, size - start), 1, rng, weights) for start in range(0, size, step))
    return np.concatenate([[marginal.values(part) for marginal in usual(layer)] for part in draws], axis=1)


def mixture_uniform(values: FloatArray, weights: FloatArray, dof: int, constant: float = 0.0) -> FloatArray:
    """Return the cdf of a normal scale mixture at `values` (draws,), which is uniform under the null.

    The mixture is the law of √(constant + Σ_h weight_h χ²_h) N, where N is standard normal, and the χ²_h are
    independent with the law of χ²_dof/dof. `weights` (draws, heads) are non-negative, with at least one positive per
    draw.
    """
    nodes, node_weights = chi_square_nodes(dof, weights.shape[1])
    result = np.empty(len(values))
    for part in slices(len(values), 2**17 // len(nodes)):  # arrays that fit into the cache
        # Positive weights may underflow here.
        terms = weights[part] @ nodes.T
        terms += constant
        np.sqrt(np.maximum(terms, _LEAST_VARIANCE, out=terms), out=terms)
        np.divide(values[part, None], terms, out=terms)
        result[part] = special.ndtr(terms, out=terms) @ node_weights
    return result


@functools.lru_cache(maxsize=64)
def chi_square_nodes(dof: int, heads: int) -> tuple[FloatArray, FloatArray]:
    """Return quadrature points (m, heads) of independent χ²_dof/dof variables and their weights (m,).

    For one head, these are Gauss–Legendre points in a power of the probability, which resolve the singularity at 0. For
    several heads, they are Sobol points with equal weights.
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
