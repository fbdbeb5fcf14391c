"""Base classes for the modules of a framework at several widths, with their inputs and optimisers."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.frameworks.binding import in_words
from attncheck.frameworks.tap_collector import ArrayReader, TapCollector
from attncheck.scaling.taps import Tap

Array = np.ndarray[Any, Any]
# Default batch size and number of positions.
_SHAPE = (4, 16)


@dataclasses.dataclass(frozen=True)
class FrameworkModels:
    """Models from ``build(width)``, with the user's inputs, call, optimiser and loss, if given."""

    build: Callable[..., Any]
    inputs: Callable[..., Any] | None = None
    call: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None

    def given(self, width: int, rng: np.random.Generator, tokens: int | None = None) -> tuple[Array, ...]:
        """Return a model's inputs: the user's, else token ids below `tokens`, else standard normal vectors."""
        if self.inputs is not None:
            drawn = in_words("inputs", self.inputs, width, rng)
        elif tokens is not None:
            drawn = rng.integers(tokens, size=_SHAPE)
        else:
            drawn = rng.standard_normal((*_SHAPE, width))
        arrays = tuple(np.asarray(each) for each in (drawn if isinstance(drawn, tuple) else (drawn,)))
        for array in arrays:
            if array.dtype.kind not in "fiub":
                refuse("inputs", array.dtype.name, "must hold numbers", "return arrays of numbers")
        return arrays

    def optimizer_of(self, model: Any) -> Any:
        """Return the optimiser of a model, or None."""
        return None if self.optimizer is None else in_words("optimizer", self.optimizer, model)


@dataclasses.dataclass(eq=False)
class FrameworkModel(abc.ABC):
    """A module with its inputs, and a PyTorch optimiser if it takes steps."""

    module: Any
    given: tuple[Any, ...]
    call: Callable[..., Any]
    optimizer: Any
    loss: Callable[..., Any]
    reader: ArrayReader
    precision: float

    @abc.abstractmethod
    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the module is called."""

    @abc.abstractmethod
    def watched(self, seen: TapCollector) -> contextlib.AbstractContextManager[None]:
        """Return a context in which all modules and softmaxes notify a collector."""

    @abc.abstractmethod
    def weights(self) -> Mapping[str, FloatArray]:
        """Return the module's parameters by name."""

    def taps(self) -> Mapping[str, Tap]:
        """Run the module; return the taps by module name."""
        seen = TapCollector(self.reader, self.precision, tuple(self.given[0].shape)[:2][-1])
        with self.running(), self.watched(seen):
            seen.ends_with(self.outputs())
        return seen.taps

    def step(self) -> None:
        """Take a step of the optimiser."""
        with self.running():
            self.optimizer.zero_grad()
            in_words("loss", lambda *given: self.loss(*given).backward(), self.outputs(), *self.given)
            in_words("optimizer", self.optimizer.step)

    def outputs(self) -> Any:
        """Return the first array of real numbers in the outputs."""
        made = in_words("call", self.call, self.module, *self.given)
        array = self.reader.first(made)
        if array is None:
            refuse("call", made, "returned no array of real numbers", "pass call=lambda module, *inputs: ...")
        return array


def distance(rng: np.random.Generator, tensor: Callable[[Array], Any]) -> Callable[..., Any]:
    """Return a loss, the mean square distance from random numbers; `tensor` converts arrays."""
    held: list[Any] = []

    def loss(outputs: Any, *_: Any) -> Any:
        if not held:
            held.append(tensor(rng.standard_normal(tuple(outputs.shape))))
        return ((outputs - held[0]) ** 2).mean()

    return loss
