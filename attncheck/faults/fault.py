"""Known-wrong simulators, and simulators that expose fewer fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attncheck.faults.literal import LiteralSimulator
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import OfLayer
from attncheck.simulators.weights import GAUSSIAN

FloatArray = NDArray[np.float64]
Simulator = Callable[[AttentionLayer, int, np.random.Generator], Mapping[str, FloatArray]]
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Fault:
    """A simulator with exactly one error.

    Attributes
    ----------
    name : str
        Key in `attncheck.faults.FAULTS`, and of the subject ``attncheck.faults:name``.
    what : str
        One-line description.
    requires : Requirement
        Layers in which the fault is detectable.
    subject : callable (layer, size, rng) -> mapping
        The simulator. As in a real one, exposed Gram matrices are those of the vectors it used.
    """

    name: str
    what: str
    requires: OfLayer
    subject: Simulator

    def reason_hidden(self, layer: AttentionLayer) -> str:
        """Return why the fault cannot be detected in `layer`, or an empty string."""
        return self.requires.reason(layer)


def declared(
    faults: list[Fault], what: str, requires: OfLayer = ANY, step: str = ""
) -> Callable[[_Function], _Function]:
    """Return a decorator that appends a fault, named like its function, to the faults of a module.

    The function is the simulator or, if `step` is a field of `LiteralSimulator`, this step of it.
    """

    def add(function: _Function) -> _Function:
        wrong: dict[str, Any] = {step: function}
        subject = LiteralSimulator(**wrong) if step else function
        faults.append(Fault(function.__name__.lstrip("_"), what, requires, subject))
        return function

    return add


@dataclasses.dataclass(frozen=True)
class ReducedExposure:
    """A simulator that exposes fewer fields.

    Attributes
    ----------
    subject : callable (layer, size, rng) -> mapping
    fields : frozenset of str
        Fields that it still returns.
    """

    subject: Simulator
    fields: frozenset[str]

    @property
    def weights(self) -> Any:
        """The declared laws of the weights."""
        return getattr(self.subject, "weights", GAUSSIAN)

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw, and return the exposed fields."""
        drawn = self.subject(layer, size, rng)
        return {name: array for name, array in drawn.items() if name in self.fields}
