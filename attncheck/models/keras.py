"""Models of keras: calls of their layers, and their parameters."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from attncheck.frameworks.binding import Binding, in_words
from attncheck.frameworks.keras import NUMBERS, Keras, generators_kept, numbers_of
from attncheck.frameworks.keras_layers import layers_heard, named_layers
from attncheck.models.binding import ModelBinding
from attncheck.models.calls import CallRecorder, ModuleCall, paired
from attncheck.models.parameters import Parameter, places_of
from attncheck.models.replay import sequences_of


class KerasModel(ModelBinding):
    """Models that ``make()`` returns, called with `inputs` by name or in order."""

    def fresh(self, seed: int) -> Any:
        """Return a newly built model."""
        with generators_kept():
            keras.utils.set_random_seed(seed)
            global_state.set_global_attribute(NUMBERS, None)
            model = in_words("make", self.make)
            self._called(model, 1)
        return model

    def calls(self, model: Any) -> Sequence[ModuleCall]:
        """Return the calls of layers on the first sequence."""
        recorders = [CallRecorder("call"), CallRecorder("call")]
        for i, recorder in enumerate(recorders):
            with generators_kept(), layers_heard(model, recorder):
                self._called(model, i + 1)
        return paired(*recorders)

    def module(self, model: Any, name: str) -> Any:
        """Return the layer of that name."""
        return dict(named_layers(model))[name]

    def replayed(self, call: ModuleCall, modules: Sequence[Any]) -> Binding:
        """Return the binding to a layer that is called as recorded."""
        return ReplayedLayer(call, modules)

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, with at most so many entries of this draw."""
        found: dict[int, Parameter] = {}
        for name, layer in named_layers(model):
            for each in layer._trainable_variables:
                if id(each) not in found:
                    found[id(each)] = _described(layer, f"{name}.{each.name}".lstrip("."), numbers_of(each), most)
        return list(found.values())

    def _called(self, model: Any, sequences: int) -> Any:
        args, kwargs = sequences_of(self.inputs or (), sequences)
        tensor = keras.ops.convert_to_tensor
        called = model if self.call is None else functools.partial(self.call, model)
        return in_words("model", called, *map(tensor, args), **{name: tensor(each) for name, each in kwargs.items()})


class ReplayedLayer(Keras):
    """Binding to the draws of a layer of a model, called as the model does."""

    def __init__(self, call: ModuleCall, modules: Sequence[Any]) -> None:
        assert call.given is not None
        self._modules = modules
        super().__init__(lambda: modules[0], call.given.width, call.given.replay)
        self.lengths = call.given.lengths

    def init(self, seed: int) -> Any:
        """Return the draw of that number, the last one for larger numbers."""
        return self._modules[min(seed, len(self._modules) - 1)]


def _described(layer: Any, name: str, entries: np.ndarray[Any, Any], most: int) -> Parameter:
    """Return a parameter of a layer."""
    fans = None
    if isinstance(layer, keras.layers.Dense) and entries.ndim == 2:
        fans = (entries.shape[0], entries.shape[1])
    flat = entries.reshape(-1)
    kind = type(layer).__name__
    default = ("uniform", (2 / sum(fans)) ** 0.5) if fans else None
    return Parameter(name, entries.shape, kind, fans, (flat[places_of(flat.size, most)],), default=default)
