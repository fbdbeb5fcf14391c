"""Stacks with norms and blocks, functionals of their draws, and distances between laws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, StackDraws, simulate
from attncheck._lib.arrays import FloatArray

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

# With positions, and with queries tied to keys.
PLACED = AttentionStack(layer=AttentionLayer(width=5, seq_len=3, num_heads=1, position_std=1.5), depth=2, residual=True)
TIED = AttentionStack(
    layer=AttentionLayer(width=6, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu"), depth=2
)
# Neither norm nor perceptron.
BARE = (
    AttentionStack(layer=AttentionLayer(width=2, seq_len=3, num_heads=1), depth=2, activations=("identity", "relu")),
    AttentionStack(layer=AttentionLayer(width=4, seq_len=2, num_heads=2), depth=3, residual=True),
    AttentionStack(
        layer=AttentionLayer(width=4, seq_len=2, num_heads=4, num_kv_heads=2, head_dim=3, mask="causal", query_std=1.5),
        depth=2,
        activations=("tanh", "relu"),
    ),
    AttentionStack(
        layer=AttentionLayer(width=6, seq_len=2, num_heads=2, attention_map="sigmoid", input_correlation=0.5),
        depth=2,
        activations=("relu", "erf"),
        residual=True,
    ),
    PLACED,
    TIED,
)

# Samples of one law exceed this distance with a chance of 1e-9, over all functionals of a file.
SIZE = 20_000
MOST = float(np.sqrt(np.log(2.0 * 250 / 1e-9) / SIZE))

FUNCTIONALS: dict[str, Callable[[StackDraws], FloatArray]] = {
    "last position": lambda d: d.outputs[:, -1, 0],
    "outputs of two positions": lambda d: d.outputs[:, 0, 0] * d.outputs[:, -1, 0],
    "length of the outputs": lambda d: (d.outputs**2).sum(axis=(1, 2)),
    "squared output and first score": lambda d: d.scores[:, 0, 0, -1, 0] ** 2 * d.outputs[:, -1, 0] ** 2,
    "squared output and last score": lambda d: d.scores[:, -1, -1, -1, 0] ** 2 * d.outputs[:, -1, 0] ** 2,
    "squared scores of two layers": lambda d: d.scores[:, 0, 0, -1, 0] ** 2 * d.scores[:, -1, 0, -1, 0] ** 2,
    "sum of all squared scores": lambda d: (d.scores**2).sum(axis=(1, 2, 3, 4)),
    "last gram": lambda d: d.grams[:, -1, 0, -1],
    "grams of two layers": lambda d: d.grams[:, 0, 0, 0] * d.grams[:, -1, 0, 0],
    "input and output": lambda d: d.streams[:, 0, 0, 0] * d.outputs[:, 0, 0],
}


def numbers(draws: StackDraws) -> FloatArray:
    """Return functionals of outputs, scores and Gram matrices of both layers, (10, size)."""
    return np.stack([functional(draws) for functional in FUNCTIONALS.values()])


def apart(one: FloatArray, other: FloatArray) -> float:
    """Return the largest Kolmogorov–Smirnov distance between functionals of two samples, (k, size) each."""
    return max(float(stats.ks_2samp(a, b, method="asymp").statistic) for a, b in zip(one, other, strict=True))


def drawn(stack: AttentionStack, seed: int) -> FloatArray:
    """Return the functionals of collapsed draws."""
    return numbers(simulate(stack, SIZE, seed, coordinates=2))
