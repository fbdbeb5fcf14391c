"""Means over the attention weights of one head in the limit, where its scores are Gaussian.

Scores are integrated over scrambled Sobol points and their negatives, so that odd parts cancel. The number of points
doubles until the error is at most `TOLERANCE`, or until the next doubling would exceed the budget; the stated error is
then larger. Errors come from the spread of independent scramblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import psd_root
from attncheck.layers.parts.qk_norm import score_kernel
from attncheck.layers.parts.scores import distinct_heads, has_offset
from attncheck.theory.limits import rows

#: The number of points is doubled until the error is at most `TOLERANCE` times the unit of the moment.
TOLERANCE = 1e-4
# Number of scramblings. For each of them: number of score entries in the first round, and maximum number in all rounds.
_SCRAMBLINGS, _FIRST, _MOST = 16, 2**20, 2**24
# Maximum number of points in the first round, and score entries that a point counts for at least.
_FIRST_POINTS, _LEAST = 2**5, 16
# Maximum number of score entries per block.
_BLOCK = 2**18
# Relative rounding error of sums over points.
_ROUNDING = 1e-13
# `_largest` probes the size of moments at this number of points, with scores multiplied by each of these factors.
_PROBES, _PROBE_SCALES = 2**5, (1.0, 4.0, 16.0)

#: A moment of attention weights: a function that maps the inputs' kernel to a pair (total, unit). `total` maps weights,
#: (points, s, s), to the sum of the moment over the points, (s, s). Tolerances are relative to `unit`.
Moment = Callable[[FloatArray], tuple[Callable[[FloatArray], FloatArray], float]]


def head_means(
    layer: AttentionLayer, kernel: FloatArray, seed: int, moments: Sequence[Moment]
) -> list[tuple[FloatArray, FloatArray]]:
    """Return the mean of each moment, over the scores and the heads of a layer, and the error of the mean, (s, s) each.

    The mean over scores is computed by quasi-Monte Carlo integration with `seed`.
    """
    functions, units = zip(*(moment(kernel) for moment in moments), strict=True)
    scores_of, dimension = _scores(layer, kernel)
    s, heads = layer.seq_len, distinct_heads(layer)
    offsets = [rows.mean_scores(head, kernel)[0] for head in heads]
    streams = np.random.SeedSequence([seed, s]).spawn(_SCRAMBLINGS)
    scramblings = [rows.normal_points(dimension, np.random.default_rng(stream)) for stream in streams]
    totals = np.zeros((len(functions), _SCRAMBLINGS, s, s))
    entries = 2 * len(offsets) * max(s**2, _LEAST)
    missed: FloatArray = np.zeros(1)
    if layer.map.traits.may_jump:
        probes = scores_of(np.random.default_rng(seed).standard_normal((_PROBES, dimension)))
        missed = rows.MISSED / _SCRAMBLINGS * _largest(heads[0], probes + offsets[0], functions)
    done, count = 0, rows.power_of_two(_FIRST / entries, 1, _FIRST_POINTS)
    step = rows.power_of_two(_BLOCK / s**2, 1, count)
    while True:
        for number, points in enumerate(scramblings):
            for _ in range(0, count, step):
                scores = scores_of(points(step))
                for head, offset in zip(heads, offsets, strict=True):
                    for signed in (offset + scores, offset - scores):
                        weights = head.attention_weights(signed)
                        totals[:, number] += [function(weights) for function in functions]
        done += count
        replicates = totals / (2 * len(offsets) * done)
        if _exchangeable(layer, kernel):
            replicates = _symmetrised(replicates)
        rounding = _ROUNDING * np.abs(replicates.mean(axis=1))
        errors = rows.error_of_mean(replicates, axis=1) + missed / done + rounding
        precise = all(error.max() <= TOLERANCE * unit for error, unit in zip(errors, units, strict=True))
        if precise or 2 * done * entries > _MOST:
            break
        count, step = done, rows.power_of_two(_BLOCK / s**2, 1, done)
    return list(zip(replicates.mean(axis=1), errors, strict=True))


def _largest(
    layer: AttentionLayer, scores: FloatArray, functions: Sequence[Callable[[FloatArray], FloatArray]]
) -> FloatArray:
    """Return the largest absolute value of each entry of each moment over trial points, (moments, s, s).

    The trial points are the `scores`, multiplied by several factors. `functions` compute the moments.
    """
    weights = np.concatenate([layer.attention_weights(scale * scores) for scale in _PROBE_SCALES])
    return np.stack([np.max([np.abs(function(point[None])) for point in weights], axis=0) for function in functions])


def kernel_moment(kernel: FloatArray) -> tuple[Callable[[FloatArray], FloatArray], float]:
    """Return the moment A K Aᵀ of attention weights A: a function that sums it over points, and its unit; see `Moment`.

    The unit is the largest diagonal entry of the kernel K.
    """
    return squares_of(lambda weights: weights, kernel), float(np.diagonal(kernel).max())


def squares_of(change: Callable[[FloatArray], FloatArray], kernel: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Return a function that sums the moment B K Bᵀ of attention weights over points, with B = ``change(weights)``.

    K is `kernel`.
    """
    root = _root(kernel)

    def total(weights: FloatArray) -> FloatArray:
        projected = change(weights) @ root
        return summed(projected, projected)

    return total


def summed(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return Σ_p B_p C_pᵀ, a sum over points p, for B = `first` and C = `second` of shape (points, s, m)."""
    return np.tensordot(first, second, axes=((0, 2), (0, 2)))


def _scores(layer: AttentionLayer, kernel: FloatArray) -> tuple[Callable[[FloatArray], FloatArray], int]:
    """Return a function that maps standard normals to centred scores, and the number of normals that it needs."""
    s, std = layer.seq_len, rows.score_std(layer)
    if rows.drawn_jointly(layer, kernel):
        score_root = rows.root_of_scores(layer, kernel)
        return lambda normals: np.asarray((normals @ score_root.T).reshape(-1, s, s)), score_root.shape[1]
    root = _root(score_kernel(layer, kernel))
    rank = root.shape[1]
    return lambda normals: np.asarray(std * (root @ normals.reshape(-1, rank, rank) @ root.T)), rank**2


def _root(kernel: FloatArray) -> FloatArray:
    """Return F with F Fᵀ = K, computed from the correlation matrix of K.

    A root that is computed from K itself would drop positions of tiny variance.
    """
    stds = np.sqrt(np.diagonal(kernel))
    scale = np.where(stds > 0, stds, 1.0)
    return np.asarray(stds[:, None] * psd_root(kernel / scale[:, None] / scale))


def _exchangeable(layer: AttentionLayer, kernel: FloatArray) -> bool:
    """Return whether positions are interchangeable, so that all pairs of different positions have the same moments."""
    if not layer.visible.all() or rows.drawn_jointly(layer, kernel) or has_offset(layer):
        return False
    s = len(kernel)
    diagonal, pair = np.diagonal(kernel), kernel[~np.eye(s, dtype=bool)]
    return bool(np.ptp(diagonal) == 0 and (s == 1 or np.ptp(pair) == 0))


def _symmetrised(matrices: FloatArray) -> FloatArray:
    """Average each matrix over permutations of positions, which reduces the integration error."""
    s = matrices.shape[-1]
    diagonal = np.trace(matrices, axis1=-2, axis2=-1) / s
    pair = (matrices.sum(axis=(-2, -1)) - s * diagonal) / max(1, s * (s - 1))
    return np.asarray(np.where(np.eye(s, dtype=bool), diagonal[..., None, None], pair[..., None, None]))
