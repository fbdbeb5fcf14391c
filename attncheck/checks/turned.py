"""Joint whitening of all visible scores of a head, if their covariance is not a Kronecker product.

Given inputs and keys, P_ij = ν^{-1/2} q^i · R_{j-i} k^j is Gaussian with covariance
σ_Q² G_ik ⟨R_{j-i} k^j, R_{l-k} k^l⟩/ν, where R is the rotation of rotary positions or the identity. Without rotation
it is σ_Q² G_ik B_jl, with B the keys' Gram matrix, but the entries that a window mask leaves visible are not a
product of rows and columns.
"""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck.checks.whitening import Residual, triangular
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.rotary import rotated_by
from attncheck.layers.parts.scores import offset_covariance

# Maximum covariance entries in memory.
_ENTRIES = 2**21


def whiten_jointly(
    layer: AttentionLayer, scores: FloatArray, gram: FloatArray, keys: FloatArray, mask: BoolArray, eps: float
) -> tuple[Residual, Residual]:
    """Return the scores whitened given inputs and keys, and the same under W_Q = W_K, each of the shape of `scores`.

    For s positions, `gram` (draws, s, s) is the inputs' Gram matrix and `mask` (s, s) marks the scores to whiten.
    `keys` are those of each head before rotation, (draws, heads, s, head width), or without rotary positions their
    Gram matrices, (draws, heads, s, s).
    """
    whitened, directions = np.zeros((2, *scores.shape))
    retained = np.zeros(scores.shape, dtype=bool)
    rows, columns = np.nonzero(mask)
    group_keys = keys[:, :: layer.group_size]
    scale = layer.query_std * layer.score_factor
    per_draw = group_keys.shape[1] * len(rows) * (4 * len(rows) + 2 * group_keys.shape[-1])
    added = offset_covariance(layer, rows, columns) / scale**2
    products = _plain_products if layer.rotary_base is None else _rotated_products
    step = max(1, _ENTRIES // per_draw)
    for start in range(0, len(scores), step):
        part = slice(start, start + step)
        covariance, tied = products(layer, group_keys[part], rows, columns)
        covariance = covariance * gram[part][:, None][..., rows[:, None], rows] + added
        whitener = triangular(covariance, eps)
        root = np.repeat(whitener.inverse_root.swapaxes(-1, -2), layer.group_size, axis=1)
        tied = np.repeat(tied, layer.group_size, axis=1)
        whitened[part][:, :, rows, columns] = (root @ (scores[part][:, :, rows, columns] / scale)[..., None])[..., 0]
        directions[part][:, :, rows, columns] = (root @ tied[..., None])[..., 0]
        retained[part][:, :, rows, columns] = np.repeat(whitener.kept, layer.group_size, axis=1)
    return Residual(whitened, retained), Residual(directions, retained)


def _plain_products(
    layer: AttentionLayer, grams: FloatArray, rows: IntArray, columns: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return ⟨k^j, k^l⟩/ν between visible entries (i, j) and (k, l), and ⟨k^j, k^i⟩/ν of each."""
    return grams[:, :, columns[:, None], columns], grams[:, :, rows, columns]


def _rotated_products(
    layer: AttentionLayer, keys: FloatArray, rows: IntArray, columns: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return the products of `_plain_products` with rotated keys: R_{j-i} k^j for k^j, and R_{l-k} k^l for k^l."""
    rotated = rotated_by(layer, keys[:, :, columns], columns - rows)
    covariance = rotated @ rotated.swapaxes(-1, -2) / layer.head_width
    return covariance, (rotated * keys[:, :, rows]).sum(axis=-1) / layer.head_width
