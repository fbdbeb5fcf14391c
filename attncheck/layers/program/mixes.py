"""Named functions of several lines: attention over values and scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.program.functions import StackedFunction


def softmax_mix(*lines: FloatArray) -> FloatArray:
    """Return Σ_j softmax_j(p_1, …, p_m) v_j.

    `lines` are the values v_1, …, v_m, followed by the scores p_1, …, p_m.

    Examples
    --------
    >>> value, score = np.ones((1, 2)), np.zeros((1, 1))
    >>> softmax_mix(value, 3.0 * value, score, score)
    array([[2., 2.]])
    """
    values, scores = _halves(lines)
    return np.asarray((special.softmax(scores, axis=0) * values).sum(axis=0))


def residual_softmax_mix(vector: FloatArray, *lines: FloatArray) -> FloatArray:
    """Return x + Σ_j softmax_j(p_1, …, p_m) v_j, where x is `vector`.

    `lines` are the values v_1, …, v_m, followed by the scores p_1, …, p_m.
    """
    return vector + softmax_mix(*lines)


def sigmoid_mix(*lines: FloatArray) -> FloatArray:
    """Return Σ_j v_j / (1 + exp(-p_j)).

    `lines` are the values v_1, …, v_m, followed by the scores p_1, …, p_m.
    """
    values, scores = _halves(lines)
    return np.asarray((special.expit(scores) * values).sum(axis=0))


@dataclasses.dataclass(frozen=True)
class AttentionRow(StackedFunction):
    """The output function of one position i of an attention layer: y^i = H^{-1/2} Σ_a Σ_j A^a_ij ṽ^{a,j}.

    A^a are the attention weights of head a, and ṽ^{a,j} = W^{O,a} W^{V,a} x^j.
    """

    layer: AttentionLayer
    position: int

    def __call__(self, vectors: FloatArray, scores: FloatArray) -> FloatArray:
        """Map ṽ (draws, H·s, coordinates) and row i of all heads' scores (draws, H·s) to y^i."""
        rows = scores.reshape(len(scores), self.layer.num_heads, self.layer.seq_len)
        mask = self.layer.visible[self.position : self.position + 1]
        weights = self.layer.map.weights(rows[..., None, :], mask)
        return self.layer.head_factor * (weights.reshape(len(scores), 1, -1) @ vectors)[:, 0]

    def __str__(self) -> str:
        return f"attention[{self.position}]"


def _halves(lines: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Split `lines` into values, the first half, and scores, the second half, and stack each half."""
    count, odd = divmod(len(lines), 2)
    if odd or not count:
        refuse("lines", len(lines), "must hold as many values as scores", "pass v_1, …, v_m, then p_1, …, p_m")
    return np.stack(lines[:count]), np.stack(lines[count:])


#: Keys are serialised; never change them.
MIXES: Final[dict[str, Callable[..., FloatArray]]] = {
    "softmax_mix": softmax_mix,
    "residual_softmax_mix": residual_softmax_mix,
    "sigmoid_mix": sigmoid_mix,
}
