"""Binding to keras models."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from attncheck.frameworks.binding import Binding, in_words
from attncheck.frameworks.keras import NUMBERS, Keras, generators_kept, numbers_of
from attncheck.frameworks.keras_layers import named_layers, traced
from attncheck.models.binding import ModelBinding
from attncheck.models.calls import CallRecorder, ModuleCall, replayed
from attncheck.models.parameters import Parameter, places_of
from attncheck.models.replay import sequences_of


class KerasModel(ModelBinding):
    """Binding to the models that ``make()`` returns, called with `inputs` by name or in order."""

    def fresh(self, seed: int) -> Any:
        """Return a newly built model."""
        with generators_kept():
            keras.utils.set_random_seed(seed)
            global_state.set_global_attribute(NUMBERS, None)
            model = in_words("make", self.make)
            self._called(model, 1)
        return model

    def recorded(self, model: Any, sequences: int | None) -> CallRecorder:
        """Return the calls of layers in a forward pass."""
        recorder = CallRecorder("call")
        with generators_kept(), traced(recorder, model):
            self._called(model, sequences)
        return recorder

    def module(self, model: Any, name: str) -> Any:
        """Return the layer of that name."""
        return dict(named_layers(model))[name]

    def replayed(self, call: ModuleCall, modules: Sequence[Any]) -> Binding:
        """Return the binding that repeats a recorded call on the draws of a layer."""
        return replayed(Keras, call, modules)

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, each with at most `most` entries of this draw."""
        found: dict[int, Parameter] = {}
        for name, layer in named_layers(model):
            for each in layer._trainable_variables:
                if id(each) not in found:
                    found[id(each)] = _described(layer, f"{name}.{each.name}".lstrip("."), numbers_of(each), most)
        return list(found.values())

    def _called(self, model: Any, sequences: int | None) -> Any:
        args, kwargs = sequences_of(self.inputs or (), sequences)
        tensor = keras.ops.convert_to_tensor
        called = model if self.call is None else functools.partial(self.call, model)
        return in_words("model", called, *map(tensor, args), **{name: tensor(each) for name, each in kwargs.items()})


def _described(layer: Any, name: str, entries: np.ndarray[Any, Any], most: int) -> Parameter:
    """Return a parameter of a layer."""
    fans = None
    if isinstance(layer, keras.layers.Dense) and entries.ndim == 2:
        fans = (entries.shape[0], entries.shape[1])
    flat = entries.reshape(-1)
    kind = type(layer).__name__
    default = ("uniform", (2 / sum(fans)) ** 0.5) if fans else None
    return Parameter(name, entries.shape, kind, fans, (flat[places_of(flat.size, most)],), default=default)
