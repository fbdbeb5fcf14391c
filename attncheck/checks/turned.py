"""Whitening of scores of rotary layers.

Given inputs and keys, P_ij = ν^{-1/2} q^i · R_{j-i} k^j is Gaussian with covariance
σ_Q² G_ik ⟨R_{j-i} k^j, R_{l-k} k^l⟩/ν. This is not a Kronecker product, so all visible entries of a head are whitened
jointly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attncheck.checks.whitening import Residual, triangular
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.rotary import turned_by

FloatArray = NDArray[np.float64]

# Maximum covariance entries in memory.
_ENTRIES = 2**21


def whiten_turned(
    layer: AttentionLayer,
    scores: FloatArray,
    gram: FloatArray,
    keys: FloatArray,
    seen: NDArray[np.bool_],
    eps: float,
) -> tuple[Residual, Residual]:
    """Return scores whitened given inputs and keys, and the whitened scores under W_Q = W_K, (draws, heads, s, s).

    `gram` (draws, s, s) is of the inputs, `keys` (draws, heads, s, ν) are not rotated, and `seen` (s, s) marks
    the scores to whiten.
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
