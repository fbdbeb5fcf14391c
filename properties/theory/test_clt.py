"""Lemmas 9 to 16: the central limit theorem for the scores.

By Cramér and Wold the scores converge to p° (Proposition 8) if every combination does, which is a sum over
coordinates: Σ_i t_i p_i = n^{-1/2} Σ_α X_α, X_α = Σ_i t_i g^{i,1}_α g^{i,2}_α. Results for every width are tested on
literal draws, and limits on exact conditional moments, for which only the Gram matrix G of the inputs is drawn. Each
test lists what it rejects.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from attncheck import AttentionLayer
from attncheck._lib.streams import stream
from attncheck.layers.expansion import expand
from attncheck.layers.kernel import image_kernel, input_covariance, input_kernel
from attncheck.layers.program import Score
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.interpret import interpret
from attncheck.simulators.multipliers import DirectMultiplier
from attncheck.strategies import layers

from .p_values import mean_p_value, normal_p_value, sign_p_value
from .statement import Look, statement

FloatArray = NDArray[np.float64]
Moment = Callable[[FloatArray], FloatArray]

# Literal draws at small widths, where effects are largest; with up to 12 positions, G is often singular.
_NARROW, _LITERAL = 8, 2_000
# Widths for the approach to the limit, a factor of 4 apart, and draws of the inputs at each.
_DRAWS = {64: 2_000, 256: 1_500, 1024: 750}
# Effect of the order 1/n³ on the prediction at the largest width: 0.07 for the highest powers of the inputs.
_CURVATURE = 0.1


def _plain(layer: AttentionLayer) -> AttentionLayer:
    """Return the layer with full heads and two matrices in every score."""
    return layer.replace(head_dim=None, tied_query_key=False)


@statement(layers(max_entries=5_000).map(_plain))
def test_summands_at_every_width(layer: AttentionLayer, run_seed: int, look: Look) -> None:
    """Lemmas 10, 11 and 13, by symmetry: X_α are exchangeable, E X_α = 0 and E X_α X_β = 0 for α ≠ β.

    Given the inputs, the X_α are i.i.d., and W^{i,1} → -W^{i,1} changes their signs. So the signs of X_α and, over
    disjoint pairs, of X_α X_β and of |X_α| - |X_β| are fair coins. X_α over its standard deviation given inputs and
    keys is standard normal, and so are whitened keys: formula (*) with G. p-values are exact. Rejected:
    coordinates of different variance, and W^Q = W^K, where the p_11 of all heads have E[X_α | G] = σ_Q² H G_11
    instead (also tested).
    """
    layer = layer.replace(width=_NARROW)
    weights = _combination(layer, run_seed)
    gram, queries, keys = _literal(layer, stream(run_seed, "clt literal", layer.key))
    of_head = np.repeat(keys, layer.group_size, axis=1)
    summands = np.einsum("aij,baic,bajc->bc", weights, queries, of_head, optimize=True)
    one, other = summands[:, ::2], summands[:, 1::2]
    look.p_value("Lemma 11", sign_p_value(summands))
    look.p_value("Lemma 13", sign_p_value(one * other))
    look.p_value("Lemma 10", sign_p_value(abs(one) - abs(other)))
    pulled = np.einsum("aij,bajc->baic", weights, of_head, optimize=True)
    variance = layer.query_std**2 * np.einsum("baic,bij,bajc->bc", pulled, gram, pulled, optimize=True)
    look.p_value("summands", normal_p_value(summands, variance))
    direction = weights[0, 0]
    variance = layer.key_std**2 * np.einsum("i,bij,j->b", direction, gram, direction)
    projected = np.einsum("i,bic->bc", direction, keys[:, 0])
    look.p_value("keys", normal_p_value(projected, np.repeat(variance[:, None], _NARROW, axis=1)))

    look.rejects("another variance", sign_p_value(2.0 * abs(one) - abs(other)))
    tied = (queries[:, :, 0] ** 2).sum(axis=1)
    look.rejects("tied, Lemma 11", sign_p_value(tied))
    look.rejects("tied, Lemma 13", sign_p_value(tied[:, ::2] * tied[:, 1::2]))
    there = gram[:, 0, 0] > 0
    total = (tied[there] / (layer.query_std**2 * gram[there, 0, :1])).sum()
    law = stats.chi2(tied[there].size * layer.num_heads)
    look.p_value("tied, the mean is σ_Q² H G_11", min(1.0, 2.0 * float(min(law.cdf(total), law.sf(total)))))


@statement(layers(max_entries=5_000).map(_plain))
def test_moments_of_summands_approach_their_limits_as_one_over_n(
    layer: AttentionLayer, run_seed: int, look: Look
) -> None:
    """Lemmas 12, 14, 15 and 16, at the rate 1/n: n times the distance to the limit is c + d/n.

    E X_α² → σ² = tᵀΣt with Σ from (*); E X_α² X_β² → σ⁴; E X_α⁴ → a limit, so that E|X_α|³ ≤ √(8/π) (E X_α⁴/3)^{3/4}
    is o(√n); products of entries of G → those of K. Rejected: a limit off by 5%, a distance of 30% at width 64 that
    falls as n^{-1/2}, and the limit σ⁴ for X_β = X_α.
    """
    weights = _combination(layer, run_seed)
    grams = {
        width: _grams(layer.replace(width=width), size, stream(run_seed, "clt moments", layer.key, width))
        for width, size in _DRAWS.items()
    }
    moments = _moments(layer, weights)
    found = {name: _approach(layer, grams, moment) for name, moment in moments.items()}
    for name, approach in found.items():
        look.p_value(name, approach.p_value())
        look.rejects(f"{name}, another limit", approach.moved(0.05).p_value())
        look.rejects(f"{name}, another order", approach.moved(0.3, rate=0.5).p_value())

    # Lemma 15: the bound falls by two thirds or more per factor of 4 in width.
    fourth, share = found["E X⁴"], 0.75 ** (4.0 / 3.0)
    for near, far in itertools.pairwise(_DRAWS):
        falls = 1.0 + fourth.gaps[near] / near - share * (1.0 + fourth.gaps[far] / far)
        error = float(np.hypot(fourth.errors[near] / near, share * fourth.errors[far] / far))
        look.exceeds(f"Lemma 15 to n={far}", falls, error, 0.0)
    kernel = input_kernel(layer).matrix
    dependent = moments["E X⁴"](kernel) / moments["E X_α² X_β²"](kernel)
    assert dependent >= 3.0
    look.rejects("dependent summands", fourth.moved(1.0 - 1.0 / float(dependent)).p_value())


@statement(width=(16, 64, 256), token=(0, 1))
def test_constants_at_finite_width(width: int, token: int, run_seed: int, look: Look) -> None:
    """Lemmas 12 and 14 for φ(x) = x: E G_ii^k = ρ_k², ρ_k = Π_{l<k} (1 + 2l/n), and all positions share one ‖h‖.

    E X_α² is ρ_2² for p_11 and ρ_2 for p_12, E X_α² X_β² is ρ_4² and ρ_4 ρ_2², and E p⁴ = (E X_α⁴ + 3(n - 1) E X_α²
    X_β²)/n = 3(1 + 2/n) E X_α² X_β². Rejected: a separate ‖h‖ per position, for which E X_α² of p_12 is 1.
    """
    layer = AttentionLayer(width=width, seq_len=2, num_heads=1, activation="identity")
    weights = np.zeros((1, 2, 2))
    weights[0, 0, token] = 1.0
    gram = _grams(layer, 4_000, stream(run_seed, "clt constants", width, token))
    moments = _moments(layer, weights)
    found = {name: _mean(layer, gram, moment) for name, moment in moments.items()}
    second, fourth = (_rho(2, width) ** 2, _rho(4, width) ** 2)
    if token == 1:
        second, fourth = _rho(2, width), _rho(4, width) * _rho(2, width) ** 2
    (mean, error), (pairs, of_pairs), (fourths, of_fourths) = (found[name] for name in ("E X²", "E X_α² X_β²", "E X⁴"))
    look.equals("E X²", mean, error, second, neighbours=[1.0])
    look.equals("E X_α² X_β²", pairs, of_pairs, fourth)
    of_score = (fourths + 3 * (width - 1) * pairs) / width
    # An upper bound: both use the same draws.
    most = (of_fourths + 3 * (width - 1) * of_pairs) / width
    look.equals("E p⁴", of_score, most, 3 * (1 + 2 / width) * fourth)


@dataclasses.dataclass(frozen=True)
class _Approach:
    """n times the relative distance of a moment from its limit, and the standard error of this number, by width."""

    gaps: Mapping[int, float]
    errors: Mapping[int, float]

    def p_value(self) -> float:
        """Return the p-value, at the largest width, of the form c + d/n fitted to the two smaller widths."""
        small, middle, large = self.gaps.values()
        off = large - middle - (middle - small) / 4.0
        error = np.linalg.norm(np.array([0.25, 1.25, 1.0]) * list(self.errors.values()))
        return mean_p_value(off, float(error), 0.0, allowance=_CURVATURE)

    def moved(self, by: float, rate: float = 0.0) -> _Approach:
        """Add a relative distance from the limit that is `by` at the smallest width and falls as n^-rate."""
        smallest = min(self.gaps)
        further = {n: gap + n * by * (smallest / n) ** rate for n, gap in self.gaps.items()}
        return dataclasses.replace(self, gaps=further)


def _combination(layer: AttentionLayer, run_seed: int) -> FloatArray:
    """Return t, one number per score: (num_heads, seq_len, seq_len)."""
    shape = (layer.num_heads, layer.seq_len, layer.seq_len)
    return stream(run_seed, "clt", layer.key, role="combination").standard_normal(shape)


def _literal(layer: AttentionLayer, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw G, W^Q X (draws, heads, s, n) and W^K X (draws, groups, s, n) with literal matrices."""
    expansion = expand(layer)
    starts = expansion.scores[:: layer.seq_len]
    queries = [score.parents[0] for score in starts if isinstance(score, Score)]
    keys = [key for group in expansion.keys for key in group]
    keep = [*expansion.inputs, *queries, *keys]
    n, s = layer.width, layer.seq_len
    values = interpret(expansion.program.steps(), n, _LITERAL, n, keep, DirectMultiplier(n, rng), rng)
    inputs = values.stack(expansion.inputs)
    gram = inputs @ inputs.swapaxes(-1, -2) / n
    shape = (_LITERAL, -1, s, n)
    return gram, values.stack(queries).reshape(shape), values.stack(keys).reshape(shape)


def _moments(layer: AttentionLayer, weights: FloatArray) -> dict[str, Moment]:
    """Return the moments given G, as polynomials in the entries of G."""

    def forms(gram: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Σ_g tr(S_g) and Σ_g tr(S_g²), S_g = σ_Q²σ_K² G Σ_a T_aᵀ G T_a over the heads of a group.

        X_α given the keys is Gaussian with variance Σ_g k_gᵀ M_g k_g, M_g = σ_Q² Σ_a T_aᵀ G T_a; keys are N(0, σ_K²
        G).
        """
        by_group = weights.reshape(layer.kv_heads, layer.group_size, *weights.shape[1:])
        inner = np.einsum("gaij,...ik,gakl->...gjl", by_group, gram, by_group, optimize=True)
        products = (layer.query_std * layer.key_std) ** 2 * (gram[..., None, :, :] @ inner)
        traces = np.trace(products, axis1=-2, axis2=-1).sum(axis=-1)
        return traces, np.einsum("...gij,...gji->...", products, products)

    def fourth(gram: FloatArray) -> FloatArray:
        once, twice = forms(gram)
        return np.asarray(3.0 * (once**2 + 2.0 * twice))

    return {
        "E X²": lambda gram: forms(gram)[0],
        "E X_α² X_β²": lambda gram: forms(gram)[0] ** 2,
        "E X⁴": fourth,
        # Two products, because the first's limit is 0 for independent positions.
        "Gram entries": lambda gram: (
            (gram[..., 0, 0] * gram[..., 0, -1]) ** 2 + (gram[..., 0, 0] * gram[..., -1, -1]) ** 2
        ),
    }


def _approach(layer: AttentionLayer, grams: Mapping[int, FloatArray], moment: Moment) -> _Approach:
    kernel = input_kernel(layer).matrix
    limit = float(moment(kernel))
    means = {n: _mean(layer.replace(width=n), gram, moment) for n, gram in grams.items()}
    gaps = {n: n * (mean - limit) / limit for n, (mean, _) in means.items()}
    return _Approach(gaps, {n: n * error / limit for n, (_, error) in means.items()})


def _grams(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    inputs = draw_inputs(layer, size, rng)
    return np.asarray(inputs @ inputs.swapaxes(-1, -2) / layer.width)


def _mean(layer: AttentionLayer, grams: FloatArray, moment: Moment) -> tuple[float, float]:
    """Return the mean of a moment over draws of G, and its standard error.

    The linear part in G has a known mean; the rest fluctuates as 1/n, like the distance.
    """
    kernel = input_kernel(layer).matrix
    linear = np.einsum("ij,bij->b", _gradient(moment, kernel), grams - _mean_gram(layer))
    values = moment(grams) - linear
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def _gradient(moment: Moment, kernel: FloatArray) -> FloatArray:
    """Return the derivatives of a polynomial by complex steps, which do not round."""
    size = len(kernel)
    steps = 1e-30j * np.eye(size**2).reshape(size**2, size, size)
    return np.asarray(moment(kernel + steps).imag / 1e-30).reshape(size, size)


@functools.lru_cache(maxsize=64)
def _mean_gram(layer: AttentionLayer) -> FloatArray:
    """Return E G: the kernel for ‖h‖² = n r, averaged over n r ~ χ²_n by Gauss–Laguerre quadrature."""
    count, shape = np.arange(24.0), layer.width / 2 - 1
    off = np.sqrt(count[1:] * (count[1:] + shape))
    nodes, vectors = linalg.eigh_tridiagonal(2 * count + 1 + shape, off)
    phi = layer.phi
    kernels = [image_kernel(phi, input_covariance(layer, 2 * node / layer.width)).matrix for node in nodes]
    return np.asarray(np.tensordot(vectors[0] ** 2, np.array(kernels), axes=1))


def _rho(count: int, width: int) -> float:
    return float(np.prod(1 + 2 * np.arange(count) / width))
