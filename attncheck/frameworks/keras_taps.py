"""Taps of keras layers: outputs, attention scores and weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from attncheck._lib.errors import refuse
from attncheck._lib.streams import stream
from attncheck.frameworks.binding import in_words
from attncheck.frameworks.keras import generators_kept, numbers_of, self_attention
from attncheck.frameworks.keras_layers import layers_heard, named_layers
from attncheck.frameworks.models import FrameworkModels
from attncheck.frameworks.tap_collector import ArrayReader, TapCollector
from attncheck.frameworks.trace import FloatArray
from attncheck.scaling.taps import Tap


@dataclasses.dataclass(frozen=True)
class KerasModels(FrameworkModels):
    """keras layers or models from ``build(width)``, on the backends JAX and torch.

    Inputs are token ids if there is an embedding, else standard normal vectors. Optimisers need torch.
    """

    def __post_init__(self) -> None:
        if self.optimizer is not None and keras.backend.backend() != "torch":
            problem = f"takes steps only on torch, but keras runs on {keras.backend.backend()}"
            refuse("optimizer", self.optimizer, problem, "set KERAS_BACKEND=torch")

    def make(self, width: int, seed: int) -> KerasModel:
        """Return a layer of this width with inputs, built by a first call."""
        rng = stream(seed, "inputs", width)
        with generators_kept():
            keras.utils.set_random_seed(seed)
            layer = in_words("build", self.build, width)
            embeddings = (each for _, each in named_layers(layer) if isinstance(each, keras.layers.Embedding))
            tokens = next((each.input_dim for each in embeddings), None)
            given = tuple(_given(each) for each in self.given(width, rng, tokens))
            made = in_words("call", self.call or self_attention, layer, *given)
        if _first(made) is None:
            refuse("call", made, "returned no array of real numbers", "pass call=lambda layer, *inputs: ...")
        targets = _given(rng.standard_normal(tuple(_first(made).shape)))
        call, loss = self.call or self_attention, self.loss or _distance(targets)
        return KerasModel(layer, given, call, self.optimizer_of(layer), loss)


@dataclasses.dataclass(frozen=True, eq=False)
class KerasModel:
    """A layer with its inputs."""

    layer: Any
    given: tuple[Any, ...]
    call: Callable[..., Any]
    optimizer: Any
    loss: Callable[..., Any]

    def taps(self) -> Mapping[str, Tap]:
        """Run the layer; return the taps by layer name."""
        precision = float(np.finfo(np.float32).eps)
        seen = TapCollector(ArrayReader(_first, numbers_of), precision, tuple(self.given[0].shape)[:2][-1])
        with generators_kept(), layers_heard(self.layer, seen), _attention_seen(seen):
            seen.ends_with(_first(in_words("call", self.call, self.layer, *self.given)))
        return seen.taps

    def weights(self) -> list[FloatArray]:
        """Return the layer's arrays."""
        return [numbers_of(each) for each in self.layer.trainable_weights]

    def step(self) -> None:
        """Take a step of the optimiser."""
        self.optimizer.zero_grad()
        with generators_kept():
            outputs = _first(in_words("call", self.call, self.layer, *self.given))
            in_words("loss", lambda *given: self.loss(*given).backward(), outputs, *self.given)
        in_words("optimizer", self.optimizer.step)


@contextlib.contextmanager
def _attention_seen(seen: TapCollector) -> Iterator[None]:
    """Tap every softmax of the backend."""
    if keras.backend.backend() == "jax":
        from attncheck.frameworks.jax_softmax import softmax_seen

        with softmax_seen(seen.softmax):
            yield
        return
    from attncheck.frameworks.torch_trace import SoftmaxMode, decomposed

    with decomposed(), SoftmaxMode(seen.softmax):
        yield


def _first(made: Any) -> Any:
    """Return the first real array, or None."""
    arrays = (each for each in keras.tree.flatten(made) if keras.ops.is_tensor(each))
    return next((each for each in arrays if "float" in keras.backend.standardize_dtype(each.dtype)), None)


def _given(array: np.ndarray[Any, Any]) -> Any:
    return keras.ops.convert_to_tensor(array, keras.config.floatx() if array.dtype.kind == "f" else None)


def _distance(targets: Any) -> Callable[..., Any]:
    def loss(outputs: Any, *_: Any) -> Any:
        return keras.ops.mean((outputs - targets) ** 2)

    return loss
