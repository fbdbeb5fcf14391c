"""Attention weights of a layer from its scores."""

from __future__ import annotations

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.mask import visible

__all__ = ["attention_weights", "visible", "weight_slopes"]


def attention_weights(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    """Return the attention weights A of score matrices P, both (..., seq_len, seq_len).

    Examples
    --------
    >>> import numpy as np
    >>> attention_weights(AttentionLayer(width=8, seq_len=2, mask="causal"), np.zeros((2, 2)))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    return layer.map.weights(scores, visible(layer))


def weight_slopes(layer: AttentionLayer, scores: FloatArray, values: FloatArray) -> FloatArray:
    """Return the derivatives of Σ_j A_rj u_j with respect to the scores P_rl, (..., seq_len, seq_len).

    `scores` is P, (..., seq_len, seq_len), and `values` is u, (..., seq_len). ReLU has slope 0 at 0.

    Examples
    --------
    >>> import numpy as np
    >>> weight_slopes(AttentionLayer(width=8, seq_len=2), np.zeros((2, 2)), np.array([1.0, 0.0]))
    array([[ 0.25, -0.25],
           [ 0.25, -0.25]])
    """
    return layer.map.slopes(scores, visible(layer), values)
