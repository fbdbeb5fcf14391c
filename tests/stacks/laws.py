"""Stacks with norms and blocks, functionals of their draws, and distances between laws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, StackDraws, simulate

FloatArray = NDArray[np.float64]

RELU = AttentionLayer(width=5, seq_len=3, num_heads=2, query_std=1.5, activation="relu")
PRE_RMS = AttentionStack(layer=RELU.replace(norm="rms"), depth=2, residual=True)
PRE_LAYER = AttentionStack(layer=RELU.replace(norm="layer"), depth=2, residual=True)
POST_RMS = AttentionStack(layer=RELU, depth=2, residual=True, post_norm="rms")
BOTH = AttentionStack(
    layer=RELU.replace(norm="layer", num_kv_heads=1, head_dim=3, mask="causal"), depth=2, post_norm="layer"
)
NORMED = (PRE_RMS, PRE_LAYER, POST_RMS, BOTH)

PLAIN = RELU.replace(activation="identity")
PRE_BLOCK = AttentionStack(
    layer=PLAIN.replace(norm="rms"), depth=2, residual=True, mlp="gelu", mlp_ratio=2, mlp_std=1.3
)
POST_BLOCK = AttentionStack(layer=PLAIN, depth=2, residual=True, post_norm="layer", mlp="relu")
PLAIN_BLOCK = AttentionStack(layer=PLAIN.replace(mask="causal", activation="tanh"), depth=2, mlp="relu", mlp_ratio=1)
BLOCKS = (PRE_BLOCK, POST_BLOCK, PLAIN_BLOCK)

# Samples of one law exceed this distance with a chance of 1e-9, over all functionals of a file.
SIZE = 20_000
MOST = float(np.sqrt(np.log(2.0 * 100 / 1e-9) / SIZE))


def numbers(draws: StackDraws) -> FloatArray:
    """Return functionals of outputs, scores and Gram matrices of both layers, (7, size)."""
    y, p, grams = draws.outputs, draws.scores, draws.grams
    return np.stack(
        [
            y[:, -1, 0],
            y[:, 0, 0] * y[:, -1, 0],
            (y**2).sum(axis=(1, 2)),
            p[:, 0, 0, -1, 0] ** 2 * p[:, -1, 0, -1, 0] ** 2,
            (p**2).sum(axis=(1, 2, 3, 4)),
            grams[:, -1, 0, -1],
            draws.streams[:, 0, 0, 0] * y[:, 0, 0],
        ]
    )


def apart(one: FloatArray, other: FloatArray) -> float:
    """Return the largest Kolmogorov–Smirnov distance between functionals of two samples, (k, size) each."""
    return max(float(stats.ks_2samp(a, b, method="asymp").statistic) for a, b in zip(one, other, strict=True))


def drawn(stack: AttentionStack, seed: int) -> FloatArray:
    """Return the functionals of collapsed draws."""
    return numbers(simulate(stack, SIZE, seed, coordinates=2))
