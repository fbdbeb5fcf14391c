"""What a reading returns: draws of a layer or a program, as arrays with one row per draw."""

from __future__ import annotations

import dataclasses
from typing import Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Arrays with one row per draw; the first of them, `outputs`, is always there."""

    outputs: FloatArray

    def __len__(self) -> int:
        return len(self.outputs)

    def as_dict(self) -> dict[str, FloatArray]:
        """Return the arrays by name, those that are None left out."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __getitem__(self, index: slice) -> Self:
        """Return a run of draws, as views."""
        return type(self)(**{name: value[index] for name, value in self.as_dict().items()})

    def empty(self, size: int) -> Self:
        """Return `size` draws to be filled, with arrays like these."""
        return type(self)(**{k: np.empty((size, *v.shape[1:]), v.dtype) for k, v in self.as_dict().items()})

    def fill(self, start: int, part: Self) -> None:
        """Copy `part` into the draws from `start` on."""
        for name, value in part.as_dict().items():
            getattr(self, name)[start : start + len(part)] = value


@dataclasses.dataclass(frozen=True, eq=False)
class Draws(Batch):
    """Independent draws of an attention layer.

    Attributes
    ----------
    outputs : ndarray, shape (size, seq_len, coordinates)
        y^i at the first `coordinates` neurons.
    scores : ndarray, shape (size, num_heads, seq_len, seq_len)
        P, after scaling, before masking.
    inputs : ndarray, shape (size, seq_len, coordinates)
        The same neurons of x^i (for the limit: Z^{x^i}).
    input_gram : ndarray, shape (size, seq_len, seq_len), or None
        X Xᵀ/n; None for the limit, like the next two.
    key_gram : ndarray, shape (size, num_heads, seq_len, seq_len), or None
        K Kᵀ/ν, σ_K included, ν = n or head_dim; repeated within a group of heads.
    value_gram : ndarray, shape (size, num_heads, seq_len, seq_len), or None
        V Vᵀ/ν, likewise.
    keys : ndarray, shape (size, num_heads, seq_len, head_dim), or None
        K = X W^K before it is turned, likewise, neuron f of a head in one plane with neuron f + head_dim/2; only with
        rotary positions, where scores given the keys need more than their Gram matrix.
    attention : ndarray, shape (size, num_heads, seq_len, seq_len), or None
        A, 0 where the mask hides: what a subject may return that has no scores. No reading does.
    """

    scores: FloatArray
    inputs: FloatArray
    input_gram: FloatArray | None = None
    key_gram: FloatArray | None = None
    value_gram: FloatArray | None = None
    keys: FloatArray | None = None
    attention: FloatArray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramDraws(Batch):
    """Independent draws of a program.

    Attributes
    ----------
    outputs : ndarray, shape (size, m, coordinates)
        The program's outputs, or, where it has none, the vectors that no other vector is made from, in the
        order they were written, at the first `coordinates` neurons.
    scores : ndarray, shape (size, r)
        The program's scores, in the order they were written.
    vectors : ndarray, shape (size, v, coordinates), or None
        All lines that are vectors, in the order they were written.
    gram : ndarray, shape (size, v, v), or None
        Their inner products over their size; 0 between vectors of different sizes.
    """

    scores: FloatArray
    vectors: FloatArray | None = None
    gram: FloatArray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class StackDraws(Batch):
    """Independent draws of a stack of attention layers.

    Attributes
    ----------
    outputs : ndarray, shape (size, seq_len, coordinates)
        The last stream, at the first `coordinates` neurons.
    scores : ndarray, shape (size, depth, num_heads, seq_len, seq_len)
        P of every layer, after scaling, before masking.
    streams : ndarray, shape (size, depth, seq_len, coordinates)
        z^{(l)}, what each layer reads, before its activation.
    grams : ndarray, shape (size, depth, seq_len, seq_len)
        X^{(l)} X^{(l)ᵀ}/n; of the limit the kernels K^{(l)}.
    """

    scores: FloatArray
    streams: FloatArray
    grams: FloatArray
