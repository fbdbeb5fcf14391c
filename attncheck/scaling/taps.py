"""Taps: what a model computes on the way, by name, and what a framework must offer to be tapped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: What a tap is: the output of a module, of a norm, of an embedding, or of the whole model; scores of attention, and
#: the weights that these make.
MODULE, NORM, EMBEDDING, OUTPUT, SCORES, WEIGHTS = "module", "norm", "embedding", "output", "scores", "weights"
#: All of them.
KINDS = (MODULE, NORM, EMBEDDING, OUTPUT, SCORES, WEIGHTS)
#: So many units in the last place of what a tap sums are rounding.
ULPS = 100.0


@dataclasses.dataclass(frozen=True, eq=False)
class Tap:
    """What one module made in one forward.

    Attributes
    ----------
    values : ndarray
        Of any shape; NaN where there is nothing, such as behind a mask.
    kind : str
        One of `KINDS`.
    what : str
        What made it, such as the name of a class.
    summed : float
        Size of what it sums: 100 units in the last place of it are no size but rounding.
    precision : float
        One unit in the last place of a number of size 1.
    again : bool
        Whether it was made by a module that had run before in the same forward.
    """

    values: FloatArray
    kind: str = MODULE
    what: str = ""
    summed: float = 0.0
    precision: float = float(np.finfo(np.float64).eps)
    again: bool = False

    @property
    def size(self) -> float:
        """Root mean square, 0 where it is rounding."""
        found = root_mean_square(self.values)
        return found if found > ULPS * self.precision * self.summed else 0.0

    def change_from(self, before: Tap) -> float:
        """Return the root mean square of the change, 0 where it is rounding."""
        found = root_mean_square(self.values - before.values)
        least = max(self.summed, before.summed, root_mean_square(before.values))
        return found if found > ULPS * self.precision * least else 0.0


class Model(Protocol):
    """A model of one width with weights of its own.

    `step` is needed only where changes are measured.

    Examples
    --------
    >>> class Linear:
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
        """Run on the model's inputs; return what is made, in the order in which it is."""

    def step(self) -> None:
        """Take one step of the optimiser, on the same inputs each time."""


class Models(Protocol):
    """Makes models of any width."""

    def make(self, width: int, seed: int) -> Model:
        """Return a freshly initialised model with inputs of its own; the same seed gives the same one."""


def root_mean_square(values: FloatArray) -> float:
    """Return the root mean square of what is not NaN; NaN where nothing is there.

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


def as_tap(made: Any) -> Tap:
    """Return a tap as it is, or what is one in an array.

    Examples
    --------
    >>> as_tap([1.0, 1.0]).size
    1.0
    """
    return made if isinstance(made, Tap) else Tap(np.asarray(made, dtype=np.float64))
