"""Binding to keras models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from attncheck.frameworks.binding import in_words
from attncheck.frameworks.keras import Keras, generators_kept, numbers_of, seeded
from attncheck.frameworks.keras_layers import named_layers, traced
from attncheck.models.binding import ModelBinding
from attncheck.models.calls import CallRecorder
from attncheck.models.parameters import Parameter, places_of


class KerasModel(ModelBinding):
    """Binding to the models that ``make()`` returns, called with `inputs` by name or in order."""

    layers = Keras

    def fresh(self, seed: int) -> Any:
        """Return a newly built model."""
        with seeded(seed):
            model = in_words("make", self.make)
            self.called(model, 1)
        return model

    def recorded(self, model: Any, sequences: int | None) -> CallRecorder:
        """Return the calls of layers in a forward pass."""
        recorder = CallRecorder("call")
        with generators_kept(), traced(recorder, model):
            self.called(model, sequences)
        return recorder

    def module(self, model: Any, name: str) -> Any:
        """Return the layer of that name."""
        return dict(named_layers(model))[name]

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, each with a sample of at most `most` entries."""
        found: dict[int, Parameter] = {}
        for name, layer in named_layers(model):
            for each in layer._trainable_variables:
                if id(each) not in found:
                    found[id(each)] = _described(layer, f"{name}.{each.name}".lstrip("."), numbers_of(each), most)
        return list(found.values())

    def tensor(self, model: Any, value: Any) -> Any:
        """Return a tensor of the backend."""
        return keras.ops.convert_to_tensor(value)


def _described(layer: Any, name: str, entries: np.ndarray[Any, Any], most: int) -> Parameter:
    """Return a parameter of a layer."""
    fans = None
    if isinstance(layer, keras.layers.Dense) and entries.ndim == 2:
        fans = (entries.shape[0], entries.shape[1])
    flat = entries.reshape(-1)
    kind = type(layer).__name__
    default = ("uniform", (2 / sum(fans)) ** 0.5) if fans else None
    return Parameter(name, entries.shape, kind, fans, (flat[places_of(flat.size, most)],), default=default)
