"""Scores of turned queries and keys, whitened: what rotary positions make of formula (*).

Given inputs and keys P_ij = ν^{-1/2} q^i · R_{j-i} k^j is Gaussian still, with the covariance
σ_Q² G_ik ⟨R_{j-i} k^j, R_{l-k} k^l⟩/ν. It is no product of a matrix of rows and one of columns: all visible entries of
a head are whitened together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.whitening import Residual, triangular
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.rotary import turned_by

FloatArray = NDArray[np.float64]

# Entries of covariances that are held at a time.
_ENTRIES = 2**21


def whiten_turned(
    layer: AttentionLayer,
    scores: FloatArray,
    gram: FloatArray,
    keys: FloatArray,
    seen: NDArray[np.bool_],
    eps: float,
) -> tuple[Residual, Residual]:
    """Return scores whitened given inputs and keys, and the same of what they would be if W_Q were W_K.

    Parameters
    ----------
    layer : AttentionLayer
    scores : ndarray, shape (draws, heads, s, s)
    gram : ndarray, shape (draws, s, s)
        Of the inputs.
    keys : ndarray, shape (draws, heads, s, ν)
        Before they are turned.
    seen : ndarray of bool, shape (s, s)
        The scores that are whitened.
    eps : float
        Rounding unit of the digits.

    Returns
    -------
    tuple of Residual
        Shapes (draws, heads, s, s).
    """
    whitened, directions = np.zeros((2, *scores.shape))
    kept = np.zeros(scores.shape, dtype=bool)
    rows, columns = np.nonzero(seen)
    own = keys[:, :: layer.group_size]
    scale = layer.query_std * layer.score_factor
    per_draw = own.shape[1] * len(rows) * (4 * len(rows) + 2 * layer.head_width)
    step = max(1, _ENTRIES // per_draw)
    for start in range(0, len(scores), step):
        part = slice(start, start + step)
        # R_{j-i} k^j of each visible entry, (draws, groups, entries, ν).
        turned = turned_by(layer, own[part][:, :, columns], columns - rows)
        covariance = turned @ turned.swapaxes(-1, -2) / layer.head_width
        covariance *= gram[part][:, None][..., rows[:, None], rows]
        whitener = triangular(covariance, eps)
        tied = (turned * own[part][:, :, rows]).sum(axis=-1) / layer.head_width
        root = np.repeat(whitener.inverse_root.swapaxes(-1, -2), layer.group_size, axis=1)
        tied = np.repeat(tied, layer.group_size, axis=1)
        whitened[part][:, :, rows, columns] = (root @ (scores[part][:, :, rows, columns] / scale)[..., None])[..., 0]
        directions[part][:, :, rows, columns] = (root @ tied[..., None])[..., 0]
        kept[part][:, :, rows, columns] = np.repeat(whitener.kept, layer.group_size, axis=1)
    return Residual(whitened, kept), Residual(directions, kept)
