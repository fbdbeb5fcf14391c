"""Taps, named intermediate values of a model, and the interface that models provide."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from attncheck._lib.arrays import FloatArray

#: Kinds of taps: outputs of a module, norm, embedding or the whole model; attention scores and weights.
MODULE, NORM, EMBEDDING, OUTPUT, SCORES, WEIGHTS = "module", "norm", "embedding", "output", "scores", "weights"
#: All kinds.
KINDS = (MODULE, NORM, EMBEDDING, OUTPUT, SCORES, WEIGHTS)
#: Changes up to this many units in the last place of a sum count as rounding.
ULPS = 100.0


@dataclasses.dataclass(frozen=True, eq=False)
class Tap:
    """Intermediate value of one forward pass, such as the output of a module.

    Attributes
    ----------
    values : ndarray
        Of any shape; NaN for missing entries, such as masked ones.
    kind : str
        One of `KINDS`.
    what : str
        The class or function that computed it.
    summed : float
        Size of the numbers that were summed to obtain the values. Values smaller than 100 units in the last place of
        that size count as rounding.
    precision : float
        Unit in the last place of 1.
    rescaled : bool
        Whether a width-dependent factor may follow, as after a readout, or if an embedding and a readout share a
        matrix.
    note : str
        Remark for the reader.
    same_as : str
        Name of the tap of an inner module with the same values, such as the last block of a sequence.
    """

    values: FloatArray
    kind: str = MODULE
    what: str = ""
    summed: float = 0.0
    precision: float = float(np.finfo(np.float64).eps)
    rescaled: bool = False
    note: str = ""
    same_as: str = ""

    @property
    def size(self) -> float:
        """Root mean square, or 0 if it is only rounding."""
        rms = root_mean_square(self.values)
        return rms if rms > ULPS * self.precision * self.summed else 0.0

    def change_from(self, before: Tap) -> float:
        """Return the root mean square of the change, or 0 if it is only rounding."""
        rms = root_mean_square(self.values - before.values)
        least = max(self.summed, before.summed, root_mean_square(before.values))
        return rms if rms > ULPS * self.precision * least else 0.0


class Model(Protocol):
    """A model of one width with its own weights.

    `step` is needed only to measure changes. Subclasses override `weights` if they know their parameters.

    Examples
    --------
    >>> class Linear(Model):
    ...     def __init__(self, width, rng):
    ...         self.x, self.w = rng.standard_normal((8, width)), rng.standard_normal((width, 4)) / width**0.5
    ...
    ...     def taps(self):
    ...         return {"out": Tap(self.x @ self.w)}
    >>> model = Linear(64, np.random.default_rng(0))
    >>> 0.5 < model.taps()["out"].size < 1.5
    True
    """

    def taps(self) -> Mapping[str, Tap]:
        """Run on the model's inputs and return taps in order of computation."""

    def weights(self) -> Mapping[str, FloatArray]:
        """Return parameters by name; a parameter of a tap's module is named by the tap's name, a dot and a suffix."""
        return {}

    def step(self) -> None:
        """Take one optimiser step, on the same inputs each time."""


#: Function of a width and a seed that returns a newly initialised model with inputs, both determined by the seed.
Make = Callable[[int, int], Model]


def root_mean_square(values: FloatArray) -> float:
    """Return the root mean square of the entries that are not NaN; NaN if there are none.

    Examples
    --------
    >>> root_mean_square(np.array([3.0, np.nan, 4.0])) == 12.5**0.5
    True
    """
    there = values[~np.isnan(values)]
    if values.size and not there.size:
        return float("nan")
    largest = float(np.abs(there).max(initial=0.0))
    if not 0.0 < largest < np.inf:
        return largest
    return largest * float(np.sqrt(np.mean((there / largest) ** 2)))


def as_tap(array: Any) -> Tap:
    """Return a tap unchanged, or wrap an array in one.

    Examples
    --------
    >>> as_tap([1.0, 1.0]).size
    1.0
    """
    return array if isinstance(array, Tap) else Tap(np.asarray(array, dtype=np.float64))
