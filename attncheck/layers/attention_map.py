"""Attention weights from scores: the four maps and the mask."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.layers.attention import AttentionLayer

FloatArray = NDArray[np.float64]

# Rows shorter than this are reduced column by column.
_SHORT = 8


def visible(layer: AttentionLayer) -> NDArray[np.bool_]:
    """Return the (seq_len, seq_len) mask, True where position i may attend to position j.

    Examples
    --------
    >>> visible(AttentionLayer(width=8, seq_len=2, mask="causal"))
    array([[ True, False],
           [ True,  True]])
    """
    shape = (layer.seq_len, layer.seq_len)
    return np.tri(*shape, dtype=bool) if layer.mask == "causal" else np.ones(shape, dtype=bool)


def map_scores(layer: AttentionLayer, scores: FloatArray, seen: NDArray[np.bool_]) -> FloatArray:
    """Return attention weights for rows of scores (..., seq_len), 0 where `seen` is False."""
    if layer.attention_map == "softmax":
        shifted = np.where(seen, scores, -np.inf)
        shifted -= _over_rows(np.maximum, shifted)
        np.exp(shifted, out=shifted)
        shifted /= _over_rows(np.add, shifted)
        return shifted
    if layer.attention_map == "relu":
        weights = np.maximum(scores, 0.0) / layer.seq_len
    elif layer.attention_map == "sigmoid":
        weights = special.expit(scores - np.log(layer.seq_len))
    else:
        weights = scores
    return np.where(seen, weights, 0.0)


def _over_rows(combine: np.ufunc, rows: FloatArray) -> FloatArray:
    """Reduce rows to (..., 1), in NumPy's order."""
    if rows.shape[-1] >= _SHORT:
        return np.asarray(combine.reduce(rows, axis=-1, keepdims=True))
    # Slices: np.split takes longer than the rest on few rows.
    return functools.reduce(combine, [rows[..., k : k + 1] for k in range(rows.shape[-1])])


def attention_weights(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    """Return A from P for score matrices (..., seq_len, seq_len).

    Examples
    --------
    >>> attention_weights(AttentionLayer(width=8, seq_len=2, mask="causal"), np.zeros((2, 2)))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    return map_scores(layer, scores, visible(layer))


def weight_slopes(layer: AttentionLayer, scores: FloatArray, values: FloatArray) -> FloatArray:
    """Return the derivative of Σ_j A_rj u_j with respect to each score P_rl, (..., seq_len, seq_len).

    `scores` are P, (..., seq_len, seq_len), `values` u, (..., seq_len). Softmax gives A_rl (u_l - Σ_j A_rj u_j);
    ReLU has slope 0 at 0.

    Examples
    --------
    >>> weight_slopes(AttentionLayer(width=8, seq_len=2), np.zeros((2, 2)), np.array([1.0, 0.0]))
    array([[ 0.25, -0.25],
           [ 0.25, -0.25]])
    """
    weights, each = attention_weights(layer, scores), values[..., None, :]
    if layer.attention_map == "softmax":
        return np.asarray(weights * (each - weights @ values[..., None]))
    if layer.attention_map == "relu":
        slopes = (weights > 0.0) / layer.seq_len
    elif layer.attention_map == "sigmoid":
        slopes = weights * (1.0 - weights)
    else:
        slopes = visible(layer).astype(float)
    return np.asarray(slopes * each)
