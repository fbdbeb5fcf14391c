"""Common interface of layers, stacks and programs, and their draws: arrays with one row per draw."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np

from attncheck._lib.arrays import FloatArray

_Drawn = TypeVar("_Drawn", bound="Batch", covariant=True)


class Description(Protocol[_Drawn]):
    """Interface of immutable descriptions of a layer, a stack, or a program at one width.

    Attributes
    ----------
    kind : str
        "layer", "stack" or "program", for messages.
    """

    kind: ClassVar[str]

    @property
    def drawn(self) -> type[_Drawn]:
        """The class of the description's draws."""
        ...


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Named arrays with one row per draw; subclasses add further arrays to `outputs`."""

    outputs: FloatArray

    def __len__(self) -> int:
        return len(self.outputs)

    def __repr__(self) -> str:
        """Return the shape of each array, one per line.

        Examples
        --------
        >>> Batch(np.zeros((100, 3, 1)))
        Batch of 100 draws:
          outputs (100, 3, 1)
        """
        arrays = self.as_dict()
        width = max(map(len, arrays))
        lines = [f"  {name:{width}} {value.shape}" for name, value in arrays.items()]
        return "\n".join([f"{type(self).__name__} of {len(self):,} draws:", *lines])

    def as_dict(self) -> dict[str, FloatArray]:
        """Return the arrays that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __getitem__(self, index: slice) -> Self:
        """Return a slice of the draws, as views."""
        return type(self)(**{name: value[index] for name, value in self.as_dict().items()})

    def empty(self, size: int) -> Self:
        """Return a batch of `size` uninitialised draws, with the array names and shapes of this one."""
        return type(self)(**{k: np.empty((size, *v.shape[1:]), v.dtype) for k, v in self.as_dict().items()})

    def fill(self, start: int, part: Self) -> None:
        """Copy the draws of `part` into this batch, from row `start` on."""
        for name, value in part.as_dict().items():
            getattr(self, name)[start : start + len(part)] = value


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Draws(Batch):
    """Independent draws of an attention layer.

    Attributes
    ----------
    outputs : ndarray, shape (size, seq_len, coordinates)
        y^i at the first `coordinates` neurons.
    scores : ndarray, shape (size, num_heads, seq_len, seq_len)
        Scores P, after scaling and before masking.
    inputs : ndarray, shape (size, seq_len, coordinates)
        The inputs x^i at the same neurons; in draws from the limit, their limit variables Z^{x^i}.
    input_gram : ndarray, shape (size, seq_len, seq_len), or None
        X Xᵀ/n. This array and the next three are None in draws from the limit.
    key_gram : ndarray, shape (size, num_heads, seq_len, seq_len), or None
        K Kᵀ/ν for the keys K before any norm of keys; σ_K is included, and ν is the number of neurons per head.
    value_gram : ndarray, shape (size, num_heads, seq_len, seq_len), or None
        V Vᵀ/ν for the values V; σ_V is included.
    keys : ndarray, shape (size, num_heads, seq_len, head_dim), or None
        K = X W^K before rotation. Only for layers with rotary positions, which rotate neurons f and f + head_dim/2 in
        one plane.
    attention : ndarray, shape (size, num_heads, seq_len, seq_len), or None
        Attention weights A, from subjects that return weights instead of scores.
    """

    scores: FloatArray
    inputs: FloatArray
    input_gram: FloatArray | None = None
    key_gram: FloatArray | None = None
    value_gram: FloatArray | None = None
    keys: FloatArray | None = None
    attention: FloatArray | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ProgramDraws(Batch):
    """Independent draws of a program.

    Attributes
    ----------
    outputs : ndarray, shape (size, outputs, coordinates)
        The outputs or, in a program without outputs, the vectors that no other vector uses; in program order.
    scores : ndarray, shape (size, scores)
        All scores, in program order.
    vectors : ndarray, shape (size, vectors, coordinates), or None
        All vectors, in program order.
    gram : ndarray, shape (size, vectors, vectors), or None
        Inner products of the vectors, divided by their number of coordinates; 0 for vectors of different lengths.
    """

    scores: FloatArray
    vectors: FloatArray | None = None
    gram: FloatArray | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class StackDraws(Batch):
    """Independent draws of a stack of attention layers.

    Attributes
    ----------
    outputs : ndarray, shape (size, seq_len, coordinates)
        Output of the stack at the first `coordinates` neurons.
    scores : ndarray, shape (size, depth, num_heads, seq_len, seq_len)
        Scores P of every layer, after scaling and before masking.
    streams : ndarray, shape (size, depth, seq_len, coordinates)
        z^{(l)}, the input of each layer before its activation.
    grams : ndarray, shape (size, depth, seq_len, seq_len)
        Gram matrices X^{(l)} X^{(l)ᵀ}/n of the layers' inputs X^{(l)}; in the limit, their kernels K^{(l)}.
    """

    scores: FloatArray
    streams: FloatArray
    grams: FloatArray
