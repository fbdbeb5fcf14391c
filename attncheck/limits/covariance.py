"""Covariance of the outputs across positions: S given the scores, and its mean."""

from __future__ import annotations

import numpy as np

from attncheck.attention import AttentionLayer
from attncheck.attention_map import attention_weights
from attncheck.limits.kernel import FloatArray, psd_root
from attncheck.limits.rows import REPLICATES, score_std, scrambled_normals

# Score entries of one scrambling, and of a block of it.
_ENTRIES = 2**20
_MOST_POINTS = 2**14
_FEWEST_POINTS = 2**4
_BLOCK = 2**20


def output_factor(layer: AttentionLayer) -> float:
    """Return what multiplies Σ_a A_a K A_aᵀ: (σ_V σ_O)², over H with head scaling."""
    return (layer.value_std * layer.output_std * layer.head_factor) ** 2


def conditional_covariance(layer: AttentionLayer, kernel: FloatArray, scores: FloatArray) -> FloatArray:
    """Return S = (σ_V² σ_O²/H) Σ_a A_a K A_aᵀ of Example 1 for scores of shape (..., H, s, s)."""
    projected = attention_weights(layer, scores) @ psd_root(kernel)
    grams = projected @ projected.swapaxes(-1, -2)
    return np.asarray(output_factor(layer) * grams.sum(axis=-3))


def mean_covariances(layer: AttentionLayer, kernel: FloatArray, seed: int) -> FloatArray:
    """Return E[S], once for each independent scrambling.

    Heads are independent and alike, so one head's scores F Z Fᵀ are all there is to integrate over.

    Returns
    -------
    ndarray, shape (REPLICATES, s, s)
    """
    root = psd_root(kernel)
    std, s = score_std(layer), layer.seq_len

    def mean_of(scores: FloatArray) -> FloatArray:
        projected = attention_weights(layer, scores) @ root
        # Σ over points and directions of products of two positions, as one matrix product.
        flat = projected.swapaxes(0, 1).reshape(s, -1)
        return np.asarray(flat @ flat.T / len(scores) * (output_factor(layer) * layer.num_heads))

    if std == 0:
        return np.repeat(mean_of(np.zeros((1, s, s)))[None], REPLICATES, axis=0)

    def replicate(stream: np.random.SeedSequence) -> FloatArray:
        rng, rank = np.random.default_rng(stream), root.shape[1]
        normals = scrambled_normals(rank * rank, _count(s), rng).reshape(-1, rank, rank)
        step = max(1, _BLOCK // (s * s))
        blocks = [normals[start : start + step] for start in range(0, len(normals), step)]
        return np.asarray(sum(len(block) * mean_of(std * (root @ block @ root.T)) for block in blocks) / len(normals))

    # A key of its own, so that these points are not those of a row.
    streams = np.random.SeedSequence([seed, s]).spawn(REPLICATES)
    means = np.stack([replicate(stream) for stream in streams])
    return _symmetrised(means) if layer.mask == "none" and _exchangeable(kernel) else means


def _exchangeable(kernel: FloatArray) -> bool:
    """Say whether every pair of positions has the same moments."""
    s = len(kernel)
    own, pair = np.diagonal(kernel), kernel[~np.eye(s, dtype=bool)]
    return bool(np.ptp(own) == 0 and (s == 1 or np.ptp(pair) == 0))


def _symmetrised(matrices: FloatArray) -> FloatArray:
    """Average over permutations of the positions, which takes out much of the integration error."""
    s = matrices.shape[-1]
    own = np.trace(matrices, axis1=-2, axis2=-1) / s
    pair = (matrices.sum(axis=(-2, -1)) - s * own) / max(1, s * (s - 1))
    return np.asarray(np.where(np.eye(s, dtype=bool), own[:, None, None], pair[:, None, None]))


def _count(seq_len: int) -> int:
    """Return a power of two: points of one scrambling for sequences of this length."""
    return int(2 ** np.floor(np.log2(np.clip(_ENTRIES / seq_len**2, _FEWEST_POINTS, _MOST_POINTS))))
