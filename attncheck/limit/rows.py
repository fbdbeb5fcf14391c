"""The law of one head's contribution to the conditional variance, by quasi-Monte Carlo.

Given the scores, position i has variance v = c Σ_a u_a with u = αᵀKα for the attention weights α of row i.
Heads are independent and alike, so one row of scores of one head, as many normals as that row's covariance
has rank, is all there is to integrate over. The tails of the output need rare, large scores: every point is
therefore used at three sizes, each with the weight that makes the three together unbiased (multiple
importance sampling with the balance heuristic).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.stats import qmc

from attncheck.attention import AttentionLayer
from attncheck.attention_map import map_scores, visible
from attncheck.limit.kernel import FloatArray, psd_root
from attncheck.limit.mixture import ScaleMixture, condense

#: Independent scramblings; errors are estimated from their spread.
REPLICATES = 8
_POINTS = 2**14
_FEWEST_POINTS = 2**9
# Normals of one scrambling: more dimensions get fewer points.
_NORMALS = 2**18
# Entries of a block of (points, seq_len) scores.
_BLOCK = 2**20
# Shares of the three sizes at which points are used.
_SHARES = (0.5, 0.25, 0.25)
# How many standard deviations of the output the tail is to be right for.
_TAIL = 12.0


def score_std(layer: AttentionLayer) -> float:
    """Return σ_Q σ_K, or 0 where "1/n" scaling makes the scores vanish in the limit."""
    return layer.query_std * layer.key_std if layer.score_scaling == "1/sqrt(n)" else 0.0


def row_root(layer: AttentionLayer, kernel: FloatArray, position: int) -> FloatArray:
    """Return F of shape (seen, r): row `position` of the scores is F z, z standard normal.

    Only the entries that the mask lets through. Softmax does not see a shift of the row, so that
    direction is taken out: one dimension less to integrate over.
    """
    seen = visible(layer)[position]
    root = score_std(layer) * np.sqrt(kernel[position, position]) * psd_root(kernel[np.ix_(seen, seen)])
    if layer.attention_map != "softmax":
        return np.asarray(root if score_std(layer) > 0 else root[:, :0])
    centred = root - root.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    kept = sizes > 1e-9 * np.linalg.norm(root)
    return np.asarray(left[:, kept] * sizes[kept])


def scrambled_normals(dimension: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Return (count, dimension) scrambled Sobol points, transformed to standard normals."""
    if dimension > qmc.Sobol.MAXDIM:
        return rng.standard_normal((count, dimension))
    points = qmc.Sobol(dimension, scramble=True, bits=30, rng=rng).random(count)
    # Scrambled points are multiples of 2^-30 and may be 0: move them to the middle of their cell.
    return np.asarray(special.ndtri(points + 2.0**-31), dtype=np.float64)


def scales(dimension: int) -> FloatArray:
    """Return the sizes at which points are used: 1 up to the radius that matters for the far tail.

    The largest is for scores that enter linearly, the heaviest tail there is: there a value of |z|²
    contributes exp(-t²/(2|z|²) - |z|²/2) |z|^(r-2), which is largest where
    |z|⁴ - (r - 2)|z|² = t², with t = 12√r the 12th standard deviation.
    """
    middle = 0.5 * dimension - 1.0
    square = middle + np.sqrt(middle**2 + _TAIL**2 * dimension)
    return np.asarray((square / dimension) ** np.array([0.0, 0.25, 0.5]))


def weigh(lengths: FloatArray, dimension: int) -> FloatArray:
    """Return the balance-heuristic weights of points of squared length `lengths`.

    The density of a standard normal against that of the mixture of its scaled copies.
    """
    logs = [
        np.log(share) + 0.5 * (1 - size**-2) * lengths - dimension * np.log(size)
        for share, size in zip(_SHARES, scales(dimension), strict=True)
    ]
    # Against the largest, so that nothing overflows in high dimensions.
    largest = np.maximum.reduce(logs)
    total = np.sum([np.exp(log - largest) for log in logs], axis=0)
    return np.asarray(np.exp(-largest) / total)


def row_variance(
    layer: AttentionLayer, kernel_root: FloatArray, rows: FloatArray, seen: NDArray[np.bool_]
) -> FloatArray:
    """Return u = αᵀKα for rows of scores.

    Parameters
    ----------
    layer : AttentionLayer
        Says which attention map.
    kernel_root : ndarray, shape (m, r)
        A root of the kernel of the positions in `rows`.
    rows : ndarray, shape (..., m)
        Scores of one position.
    seen : ndarray of bool, shape (m,)
        What the mask lets through.
    """
    projected = map_scores(layer, rows, seen) @ kernel_root
    return np.asarray(np.einsum("...r,...r->...", projected, projected))


def head_laws(
    layer: AttentionLayer, kernel: FloatArray, position: int, seed: int
) -> tuple[ScaleMixture, ...]:
    """Return the law of u of one head at `position`, once for each independent scrambling."""
    seen = visible(layer)[position]
    kernel_root = psd_root(kernel[np.ix_(seen, seen)])
    root = row_root(layer, kernel, position)
    shown = np.ones(len(root), dtype=bool)
    if root.shape[1] == 0:
        only = row_variance(layer, kernel_root, np.zeros((1, len(root))), shown)
        return (condense(only, np.ones(1)),) * REPLICATES
    streams = np.random.SeedSequence([seed, position]).spawn(REPLICATES)

    def replicate(stream: np.random.SeedSequence) -> ScaleMixture:
        points = _scaled_points(root.shape[1], np.random.default_rng(stream))
        step = max(1, _BLOCK // len(root))
        values = [
            row_variance(layer, kernel_root, points[start : start + step] @ root.T, shown)
            for start in range(0, len(points), step)
        ]
        lengths = np.einsum("pr,pr->p", points, points)
        return condense(np.concatenate(values), weigh(lengths, root.shape[1]))

    return tuple(replicate(stream) for stream in streams)


def _scaled_points(dimension: int, rng: np.random.Generator) -> FloatArray:
    """Return one set of normals at every scale, shape (points, dimension).

    The larger sizes take the first half of the points, which is a Sobol sequence itself.
    """
    count = max(_FEWEST_POINTS, min(_POINTS, 2 ** int(np.log2(_NORMALS // dimension or 1))))
    normals = scrambled_normals(dimension, count, rng)
    parts = zip(_SHARES, scales(dimension), strict=True)
    return np.concatenate([size * normals[: int(count * share / _SHARES[0])] for share, size in parts])
