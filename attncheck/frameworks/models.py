"""Models of any framework at several widths, with their inputs and optimisers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.streams import stream
from attncheck.frameworks.adapter import in_words
from attncheck.frameworks.framework import FrameworkAdapter
from attncheck.frameworks.tap_collector import TapCollector
from attncheck.scaling.taps import Model, Tap

Array = np.ndarray[Any, Any]
# Default batch size and number of positions.
_SHAPE = (4, 16)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelsAtWidths:
    """Models from ``build(width)``, with the user's inputs, call, optimiser and loss, if given.

    Default inputs are token ids for a model with an embedding, else standard normal vectors.
    """

    kind: type[FrameworkAdapter]
    build: Callable[..., Any]
    inputs: Callable[..., Any] | None = None
    call: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None
    _adapters: dict[int, FrameworkAdapter] = dataclasses.field(default_factory=dict, repr=False)

    def make(self, width: int, seed: int) -> ModelAtWidth:
        """Return a model of this width with inputs."""
        adapter = self._adapters.get(width)
        if adapter is None:
            build = functools.partial(self.build, width)
            adapter = self._adapters.setdefault(width, self.kind(build, self.call, fields=("build", "call")))

        def inputs(module: Any) -> tuple[tuple[Array, ...], Mapping[str, Any]]:
            return self.drawn(width, stream(seed, "inputs", width), adapter.tokens(module)), {}

        adapter.inputs = inputs
        module = adapter.evaluated(adapter.make(seed), single=True)  # half precision would hide small changes
        rng = stream(seed, "inputs", width)
        arrays = self.drawn(width, rng, adapter.tokens(module))
        tensors = tuple(adapter.tensor(module, array) for array in arrays)
        return ModelAtWidth(adapter, module, tensors, self.optimizer, self.loss, rng)

    def drawn(self, width: int, rng: np.random.Generator, tokens: int | None) -> tuple[Array, ...]:
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


@dataclasses.dataclass(eq=False)
class ModelAtWidth(Model):
    """A module with its inputs, and an optimiser if it takes steps."""

    adapter: FrameworkAdapter
    module: Any
    tensors: tuple[Any, ...]
    optimizer: Callable[..., Any] | None
    loss: Callable[..., Any] | None
    rng: np.random.Generator
    _step: Callable[[], Any] | None = None

    def taps(self) -> Mapping[str, Tap]:
        """Run the module; return the taps by module name."""
        precision = 2 * self.adapter.coarseness(self.module)
        collector = TapCollector(self.adapter, precision, tuple(self.tensors[0].shape)[:2][-1])
        with self.adapter.running(), self.adapter.traced(collector, self.module):
            collector.ends_with(self._outputs(self.module, *self.tensors))
        return collector.taps

    def weights(self) -> Mapping[str, FloatArray]:
        """Return the module's parameters by name."""
        return {stored.name: self.adapter.numbers(stored.value) for stored in self.adapter.stored(self.module)}

    def step(self) -> None:
        """Take a step of the optimiser; the default loss is the mean square distance from random numbers."""
        with self.adapter.running():
            if self._step is None:
                assert self.optimizer is not None
                targets = self.rng.standard_normal(tuple(self._outputs(self.module, *self.tensors).shape))
                data = self.adapter.tensor(self.module, targets), *self.tensors
                self._step = self.adapter.trainer(self.module, self.optimizer, self._loss, data)
            self.module = self._step()

    def _outputs(self, module: Any, *tensors: Any) -> Any:
        """Return the first array of real numbers in the outputs."""
        outputs = self.adapter.called(module, (tensors, {}))
        array = self.adapter.first(outputs)
        if array is None:
            refuse("call", outputs, "returned no array of real numbers", "pass call=lambda module, *inputs: ...")
        return array

    def _loss(self, module: Any, targets: Any, *tensors: Any) -> Any:
        outputs = self._outputs(module, *tensors)
        return ((outputs - targets) ** 2).mean() if self.loss is None else self.loss(outputs, *tensors)
