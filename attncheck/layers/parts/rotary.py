"""Rotary positions: queries and keys rotated by angles proportional to their position.

At position j neurons f and f + ν/2 of a head rotate by j b^{-2f/ν}, b the layer's `rotary_base`. Scores then
depend on positions through their distance: P_ij = ν^{-1/2} q^i · R_{j-i} k^j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck._lib.errors import check_number, refuse
from attncheck.layers.parts.part import LayerPart

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


_BASES = (1.5, 1e12)
# Head widths and bases of random layers.
_HEAD_DIMS = (2, 4, 8, 16)
_RANDOM_BASES = (10_000.0, 100.0, 500_000.0)


class RotaryPart(LayerPart):
    """Rotary positions, the part of a layer with the field `rotary_base`."""

    fields: ClassVar[Mapping[str, Any]] = {"rotary_base": None}
    name: ClassVar[str] = "rotary positions"
    refusals: ClassVar[Mapping[str, str]] = {
        "finite-width law": "has no computed law of scores at finite width",
        "tangent kernel": "is not supported by the tangent kernel",
        "long sequences": "distinguishes positions",
        "stack": "is not supported in a stack",
    }
    whole_vectors: ClassVar[bool] = True

    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated `rotary_base`."""
        remedy = f"pass a number between {_BASES[0]:g} and {_BASES[1]:g}, e.g. rotary_base=10000.0, or None"
        base = check_number("rotary_base", layer.rotary_base, remedy, minimum=_BASES[0], maximum=_BASES[1])
        if layer.head_dim is None or layer.head_dim % 2:
            problem = "rotates pairs of neurons in each head, which needs an even head_dim"
            example = 2 * ((layer.head_dim or layer.width) // 2 + 1)
            refuse("rotary_base", base, problem, f"pass head_dim, e.g. {example}")
        if layer.tied_query_key:
            refuse("rotary_base", base, "is not supported with tied_query_key", "leave out one of them")
        return {"rotary_base": base}

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return field values for random layers."""
        if layer.tied_query_key:
            return []
        return [{"head_dim": width, "rotary_base": base} for width in _HEAD_DIMS for base in _RANDOM_BASES]


def rotated(layer: AttentionLayer, vectors: FloatArray) -> FloatArray:
    """Return rotated queries or keys, (..., seq_len, head_dim), unchanged without rotary positions.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> layer = AttentionLayer(width=4, seq_len=2, head_dim=2, rotary_base=10_000.0)
    >>> rotated(layer, np.array([[1.0, 0.0], [1.0, 0.0]])).round(4)
    array([[1.    , 0.    ],
           [0.5403, 0.8415]])
    """
    return vectors if layer.rotary_base is None else rotated_by(layer, vectors, np.arange(layer.seq_len))


def rotated_by(layer: AttentionLayer, vectors: FloatArray, steps: IntArray) -> FloatArray:
    """Return vectors (..., head_dim) rotated by `steps` positions, which broadcast to the leading axes."""
    angles = steps[..., None] * frequencies(layer)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = np.split(vectors, 2, axis=-1)
    return np.concatenate([cos * first - sin * second, sin * first + cos * second], axis=-1)


def frequencies(layer: AttentionLayer) -> FloatArray:
    """Return the angle by which each pair of neurons rotates per position, (head_dim / 2,)."""
    base, pairs = layer.rotary_base or 1.0, layer.head_width // 2
    return np.asarray(base ** -(np.arange(pairs) / pairs))


def score_alignment(layer: AttentionLayer) -> FloatArray:
    """Return the factors by which rotation multiplies score covariances, as ν = head_dim goes to infinity.

    Given the inputs, with Gram matrix G, scores have covariances Cov(P_ij, P_kl) = σ² G_ik G_jl tr(R_d)/ν, where σ is
    σ_Q σ_K and R_d is the rotation by d = |(j - i) - (l - k)| positions. The function returns the limit of tr(R_d)/ν
    for each d < 2 seq_len - 1. This limit is (Ci(d) - Ci(d/b)) / log b, where Ci is the cosine integral and b the
    rotary base.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> layer = AttentionLayer(width=4, seq_len=2, head_dim=2, rotary_base=10_000.0)
    >>> score_alignment(layer).round(3)
    array([1.   , 0.974, 0.908])
    """
    distances = np.arange(2 * layer.seq_len - 1)
    if layer.rotary_base is None:
        return np.ones(len(distances))
    separations = np.maximum(distances, 1)
    cosines = special.sici(separations)[1] - special.sici(separations / layer.rotary_base)[1]
    return np.where(distances > 0, cosines / np.log(layer.rotary_base), 1.0)


def row_alignment(layer: AttentionLayer) -> FloatArray:
    """Return `score_alignment` for all pairs of scores in a row, (seq_len, seq_len)."""
    positions = np.arange(layer.seq_len)
    return score_alignment(layer)[np.abs(np.subtract.outer(positions, positions))]


def pair_alignment(layer: AttentionLayer) -> FloatArray:
    """Return `score_alignment` for all pairs of a head's scores in row-major order, (seq_len², seq_len²)."""
    positions = np.arange(layer.seq_len)
    steps = np.subtract.outer(positions, positions).ravel()
    return score_alignment(layer)[np.abs(np.subtract.outer(steps, steps))]
