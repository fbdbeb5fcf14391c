"""Taps of keras layers: outputs, attention scores and weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras.src import backend

from attncheck._lib.errors import refuse
from attncheck._lib.streams import stream
from attncheck.frameworks.binding import FloatArray, in_words
from attncheck.frameworks.keras import generators_kept, numbers_of, self_attention
from attncheck.frameworks.tap_collector import TapCollector
from attncheck.scaling.taps import Tap

# Default batch size and number of positions.
_BATCH, _POSITIONS = 4, 16
# Attributes that list sublayers known under other names.
_LISTS = ("_layers", "_functional", "_modules")
# Scores below this value count as masked.
_HIDDEN = -1e30


@dataclasses.dataclass(frozen=True)
class KerasModels:
    """keras layers or models from ``build(width)``, on the backends JAX and torch.

    Inputs are token ids if there is an embedding, else standard normal vectors. Optimisers need torch.
    """

    build: Callable[[int], Any]
    inputs: Callable[..., Any] | None = None
    call: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None

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
            drawn = _drawn(layer, width, rng) if self.inputs is None else in_words("inputs", self.inputs, width, rng)
            given = tuple(_given(each) for each in (drawn if isinstance(drawn, tuple) else (drawn,)))
            made = in_words("call", self.call or self_attention, layer, *given)
        if _first(made) is None:
            refuse("call", made, "returned no array of real numbers", "pass call=lambda layer, *inputs: ...")
        optimizer = None if self.optimizer is None else in_words("optimizer", self.optimizer, layer)
        targets = _given(rng.standard_normal(tuple(_first(made).shape)))
        return KerasModel(layer, given, self.call or self_attention, optimizer, self.loss or _distance(targets))


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
        seen = TapCollector(precision, tuple(self.given[0].shape)[:2][-1])
        names = {id(each): name for name, each in named_layers(self.layer)}
        with generators_kept(), _told(names, seen), _attention_seen(seen):
            seen.ends_with(id(_first(in_words("call", self.call, self.layer, *self.given))))
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


def named_layers(layer: Any) -> list[tuple[str, Any]]:
    """Return a layer and its sublayers by attribute path, since keras numbers names globally."""
    found: dict[int, tuple[str, Any]] = {}

    def visit(name: str, each: Any) -> None:
        if isinstance(each, keras.layers.Layer):
            if id(each) not in found:
                found[id(each)] = (name, each)
                # On torch, attributes that are layers are stored as submodules.
                own = {**vars(each), **vars(each).get("_modules", {})}
                for key, held in ((key, held) for key, held in own.items() if key not in _LISTS):
                    visit(f"{name}.{key.lstrip('_')}".lstrip("."), held)
                for place, held in enumerate(each._layers):
                    visit(f"{name}.{place}".lstrip("."), held)
        elif isinstance(each, list | tuple):
            for place, held in enumerate(each):
                visit(f"{name}.{place}", held)
        elif isinstance(each, dict):
            for key, held in each.items():
                visit(f"{name}.{key}", held)

    visit("", layer)
    return list(found.values())


@contextlib.contextmanager
def _told(names: Mapping[int, str], seen: TapCollector) -> Iterator[None]:
    """Make every named layer also collect its outputs."""
    own = keras.layers.Layer.__call__

    def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if id(layer) not in names:
            return own(layer, *args, **kwargs)
        seen.begins(names[id(layer)])
        made = own(layer, *args, **kwargs)
        array, entered = _first(made), _first(args)
        values = None if array is None else numbers_of(array)
        seen.ends(layer, values, id(array), array, None if entered is None else numbers_of(entered))
        return made

    keras.layers.Layer.__call__ = called
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = own


@contextlib.contextmanager
def _attention_seen(seen: TapCollector) -> Iterator[None]:
    """Tap the backend's softmax, and use it in its attention."""
    own = backend.nn.softmax, backend.nn.dot_product_attention

    def softmax(x: Any, axis: Any = -1) -> Any:
        if isinstance(axis, int):
            scores = numbers_of(x)
            seen.softmax(np.where(scores <= 0.5 * _HIDDEN, -np.inf, scores), axis % scores.ndim - scores.ndim)
        return own[0](x, axis)

    backend.nn.softmax, backend.nn.dot_product_attention = softmax, _attention
    try:
        yield
    finally:
        backend.nn.softmax, backend.nn.dot_product_attention = own


def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """Return keras attention, (batch, positions, heads, head_dim), with a tapped softmax."""
    ops = keras.ops
    repeats = query.shape[2] // key.shape[2]
    key, value = (ops.repeat(each, repeats, axis=2) for each in (key, value))
    scores = ops.einsum("bqhd,bkhd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    shown = np.tril(np.ones(tuple(scores.shape[-2:]), dtype=bool)) if is_causal else None
    for seen in (mask, shown):
        scores = scores if seen is None else ops.where(ops.cast(seen, "bool"), scores, _HIDDEN)
    return ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores, axis=-1), value)


def _first(made: Any) -> Any:
    """Return the first real array, or None."""
    arrays = (each for each in keras.tree.flatten(made) if keras.ops.is_tensor(each))
    return next((each for each in arrays if "float" in keras.backend.standardize_dtype(each.dtype)), None)


def _drawn(layer: Any, width: int, rng: np.random.Generator) -> FloatArray | np.ndarray[Any, Any]:
    """Return token ids for the first embedding, else vectors."""
    embeddings = (each for _, each in named_layers(layer) if isinstance(each, keras.layers.Embedding))
    if (found := next(embeddings, None)) is not None:
        return rng.integers(found.input_dim, size=(_BATCH, _POSITIONS))
    return rng.standard_normal((_BATCH, _POSITIONS, width))


def _given(drawn: Any) -> Any:
    array = np.asarray(drawn)
    if array.dtype.kind not in "fiub":
        refuse("inputs", array.dtype.name, "must hold numbers", "return arrays of numbers")
    return keras.ops.convert_to_tensor(array, keras.config.floatx() if array.dtype.kind == "f" else None)


def _distance(targets: Any) -> Callable[..., Any]:
    def loss(outputs: Any, *_: Any) -> Any:
        return keras.ops.mean((outputs - targets) ** 2)

    return loss
