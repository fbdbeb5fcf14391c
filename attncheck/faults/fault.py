"""A known-wrong simulator, and what it lets others see."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirements import OfLayer
from attncheck.simulators.weights import GAUSSIAN

FloatArray = NDArray[np.float64]
Simulator = Callable[[AttentionLayer, int, np.random.Generator], Mapping[str, FloatArray]]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A simulator with one thing wrong; everything else about it is exact.

    Attributes
    ----------
    name : str
        Key in `attncheck.faults.FAULTS`, and of the subject ``attncheck.faults:name``.
    what : str
        What is wrong, in one line.
    requires : Requirement
        Where the fault changes the law of a layer by an amount that can be seen.
    subject : callable (layer, size, rng) -> mapping
        The simulator. What it exposes is what a real one with this fault would: Gram matrices are those of
        the vectors that it multiplied.
    """

    name: str
    what: str
    requires: OfLayer
    subject: Simulator

    def reason_hidden(self, layer: AttentionLayer) -> str:
        """Return why the fault cannot be seen in `layer`; empty if it can."""
        return self.requires.reason(layer)


@dataclasses.dataclass(frozen=True)
class ReducedExposure:
    """A simulator that lets less be seen.

    Attributes
    ----------
    subject : callable (layer, size, rng) -> mapping
    fields : frozenset of str
        What it still returns.
    """

    subject: Simulator
    fields: frozenset[str]

    @property
    def weights(self) -> Any:
        """The laws of the weights that it declares."""
        return getattr(self.subject, "weights", GAUSSIAN)

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw, and return some of what was drawn."""
        drawn = self.subject(layer, size, rng)
        return {name: array for name, array in drawn.items() if name in self.fields}
