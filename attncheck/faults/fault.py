"""Known-wrong simulators, and simulators that expose fewer fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.program import Program
from attncheck.layers.requirement import ANY, Requirement
from attncheck.simulators.literal import LiteralSimulator
from attncheck.simulators.weights import GAUSSIAN
from attncheck.subject import collapsed

Drawn = dict[str, FloatArray]
Simulator = Callable[[AttentionLayer, int, np.random.Generator], Mapping[str, FloatArray]]
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Fault:
    """A simulator with exactly one error.

    Attributes
    ----------
    name : str
        Key in `attncheck.faults.FAULTS`; the subject is ``attncheck.faults:name``. For programs, key in
        ``attncheck.faults.programs.PROGRAM_FAULTS``; the subject is ``attncheck.faults.programs:name``.
    what : str
        One-line description.
    requires : Requirement
        Layers or programs in which the fault is detectable.
    subject : callable (layer, size, rng) -> mapping, or (program, width, size, rng) -> mapping
        The simulator. As in a real simulator, it computes the Gram matrices that it returns from its own vectors,
        which the error may have changed.
    """

    name: str
    what: str
    requires: Requirement[Any]
    subject: Callable[..., Mapping[str, FloatArray]]

    def reason_hidden(self, case: AttentionLayer | Program) -> str:
        """Return why the fault cannot be detected in a layer or program, or an empty string."""
        return self.requires.reason(case)


@dataclasses.dataclass(frozen=True)
class MisreadLayer:
    """A simulator that changes some fields of the layer, and simulates the changed layer correctly."""

    changes: Callable[[AttentionLayer], Mapping[str, Any]]

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw a sample of the changed layer."""
        return collapsed(layer.replace(**self.changes(layer)), size, rng)


@dataclasses.dataclass(frozen=True)
class TamperedDraws:
    """A correct simulator whose draws are changed before it returns them."""

    changes: Callable[[Drawn], Mapping[str, FloatArray]]

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
        """Draw a correct sample, and replace the changed fields."""
        drawn = {name: np.array(array) for name, array in collapsed(layer, size, rng).items()}
        return {**drawn, **self.changes(drawn)}


def declared(
    faults: list[Fault],
    description: str,
    requires: Requirement[Any] = ANY,
    step: str = "",
    simulator: Callable[..., Any] = LiteralSimulator,
    **steps: Callable[..., Any],
) -> Callable[[_Function], _Function]:
    """Return a decorator that appends a fault to `faults`; the fault has the name of the decorated function.

    Without a `step`, the decorated function is the wrong simulator. With a `step`, which is the name of a field of
    `simulator`, the decorated function replaces this step of `simulator`. `steps` replaces further steps, by name.
    """

    def add(function: _Function) -> _Function:
        subject = simulator(**{step: function}, **steps) if step else function
        faults.append(Fault(function.__name__.lstrip("_"), description, requires, subject))
        return function

    return add


def with_changed_fields(
    faults: list[Fault], text: str, requires: Requirement[Any] = ANY
) -> Callable[[_Function], _Function]:
    """Return a decorator that appends a fault to `faults`: a simulator of a layer with some fields changed.

    The decorated function maps the declared layer to the fields that the simulator changes, with their wrong values.
    """
    return declared(faults, text, requires, "changes", MisreadLayer)


def corrupted(faults: list[Fault], text: str, requires: Requirement[Any] = ANY) -> Callable[[_Function], _Function]:
    """Return a decorator that appends a fault to `faults`: a correct simulator whose results are changed.

    The decorated function maps the dictionary of correct arrays to a dictionary of the changed ones.
    """
    return declared(faults, text, requires, "changes", TamperedDraws)


@dataclasses.dataclass(frozen=True)
class ReducedExposure:
    """A simulator that returns only some of the fields of another one.

    Attributes
    ----------
    subject : callable (layer, size, rng) -> mapping
    fields : frozenset of str
        Fields that the simulator still returns.
    """

    subject: Simulator
    fields: frozenset[str]

    @property
    def weights(self) -> Any:
        """The declared laws of the weights."""
        return getattr(self.subject, "weights", GAUSSIAN)

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw a sample, and return the exposed fields only."""
        drawn = self.subject(layer, size, rng)
        return {name: array for name, array in drawn.items() if name in self.fields}
