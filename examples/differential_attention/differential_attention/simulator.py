"""Draw differential attention at random initialisation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attncheck import AttentionLayer

FloatArray = NDArray[np.float64]

#: Weight of the second softmax.
LAMBDA = 0.8


def softmax(scores: FloatArray) -> FloatArray:
    """Return the softmax over the last axis."""
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def differential(scores: FloatArray, factor: float = LAMBDA) -> FloatArray:
    """Return softmax(P1) - factor * softmax(P2) of heads 2j and 2j + 1, (draws, pairs, s, s)."""
    weights = softmax(scores)
    return weights[:, ::2] - factor * weights[:, 1::2]


def draw(layer: AttentionLayer, size: int, rng: np.random.Generator, factor: float = LAMBDA) -> dict[str, FloatArray]:
    """Draw outputs of two neurons, scores, and the Gram matrices of values, for a weight of the second softmax."""
    n, s, heads, d = layer.width, layer.seq_len, layer.num_heads, layer.head_width
    x = rng.standard_normal((size, 1, s, n))
    queries, keys = (x @ rng.standard_normal((size, heads, n, d)) / np.sqrt(n) for _ in range(2))
    values = x @ rng.standard_normal((size, heads // 2, n, d)) / np.sqrt(n)
    scores = queries @ keys.swapaxes(2, 3) / np.sqrt(d)
    projection = rng.standard_normal((size, heads // 2, d, min(2, n))) / np.sqrt(d)
    outputs = (differential(scores, factor) @ values @ projection).sum(axis=1) / np.sqrt(heads // 2)
    grams = np.repeat(values @ values.swapaxes(2, 3) / d, 2, axis=1)
    return {"outputs": outputs, "scores": scores, "value_gram": grams}


def supports(layer: AttentionLayer) -> bool | str:
    """Return whether a layer has pairs of heads, and no feature that the simulator lacks."""
    plain = AttentionLayer(width=layer.width, seq_len=layer.seq_len, num_heads=layer.num_heads, head_dim=layer.head_dim)
    return (layer == plain and layer.num_heads % 2 == 0) or "plain layers with pairs of heads only"


def simulate(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw differential attention."""
    return draw(layer, size, rng)


simulate.supports = supports  # type: ignore[attr-defined]  # attncheck asks a function for it
