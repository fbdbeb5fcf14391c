"""Taps of keras layers: outputs, attention scores and weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.streams import stream
from attncheck.frameworks.binding import in_words
from attncheck.frameworks.keras import generators_kept, numbers_of, seeded, self_attention, tensor_of
from attncheck.frameworks.keras_layers import named_layers, traced
from attncheck.frameworks.models import FrameworkModel, FrameworkModels, distance
from attncheck.frameworks.tap_collector import ArrayReader, TapCollector


@dataclasses.dataclass(frozen=True)
class KerasModels(FrameworkModels):
    """keras layers or models from ``build(width)``, on the backends JAX and torch.

    Default inputs are token ids for a model with an embedding, else standard normal vectors. Optimisers need the torch
    backend.
    """

    def __post_init__(self) -> None:
        if self.optimizer is not None and keras.backend.backend() != "torch":
            problem = f"takes steps only on torch, but keras runs on {keras.backend.backend()}"
            refuse("optimizer", self.optimizer, problem, "set KERAS_BACKEND=torch")

    def make(self, width: int, seed: int) -> KerasModel:
        """Return a layer of this width with inputs, built by a first call."""
        rng = stream(seed, "inputs", width)
        with seeded(seed):  # the same names at every width
            layer = in_words("build", self.build, width)
            embeddings = (each for _, each in named_layers(layer) if isinstance(each, keras.layers.Embedding))
            tokens = next((each.input_dim for each in embeddings), None)
            given = tuple(tensor_of(each) for each in self.given(width, rng, tokens))
            call, loss = self.call or self_attention, self.loss or distance(rng, tensor_of)
            reader, precision = ArrayReader(_first, numbers_of), float(np.finfo(np.float32).eps)
            model = KerasModel(layer, given, call, None, loss, reader, precision)
            model.outputs()
        return dataclasses.replace(model, optimizer=self.optimizer_of(layer))


class KerasModel(FrameworkModel):
    """A layer with its inputs."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Restore all random generators on exit."""
        return generators_kept()

    @contextlib.contextmanager
    def watched(self, seen: TapCollector) -> Iterator[None]:
        """Tap all layers, and every softmax of the backend."""
        with traced(seen, self.module):
            yield

    def weights(self) -> dict[str, FloatArray]:
        """Return the layer's parameters by name."""
        return {
            f"{name}.{each.name}".lstrip("."): numbers_of(each)
            for name, layer in named_layers(self.module)
            for each in layer._trainable_variables
        }


def _first(made: Any) -> Any:
    """Return the first array of real numbers in an output, or None."""
    arrays = (each for each in keras.tree.flatten(made) if keras.ops.is_tensor(each))
    return next((each for each in arrays if "float" in keras.backend.standardize_dtype(each.dtype)), None)
