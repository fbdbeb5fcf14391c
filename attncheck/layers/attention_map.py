"""Attention weights of a layer from its scores."""

from __future__ import annotations

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.mask import visible

__all__ = ["attention_weights", "visible"]


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
