"""keras layers are read correctly, and no generator is touched."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from attncheck import inspect
from attncheck.frameworks.binding import bind
from attncheck.frameworks.keras import Keras, numbers_of

from . import reading

os.environ.setdefault("KERAS_BACKEND", "torch")
keras: Any = pytest.importorskip("keras")

WIDTH = 12
BIASED = {"bias_initializer": "normal"}


def layer() -> Any:
    return keras.layers.MultiHeadAttention(3, 4, **BIASED)


def grouped() -> Any:
    return keras.layers.GroupQueryAttention(4, 4, 2, **BIASED)


def model() -> Any:
    inputs = keras.Input((None, WIDTH))
    return keras.Model(
        inputs, keras.layers.MultiHeadAttention(3, 4, dropout=0.4, name="inner", **BIASED)(inputs, inputs)
    )


class Written(keras.layers.Layer):
    """Attention that calls keras' function, with parts built at the first call."""

    def build(self, shape: Any) -> None:
        for part in ("query", "key", "value"):
            setattr(
                self,
                f"_{part}_dense",
                keras.layers.EinsumDense("abc,cde->abde", (None, 3, 4), bias_axes="de", **BIASED),
            )
        self._output_dense = keras.layers.EinsumDense("abde,dec->abc", (None, WIDTH), bias_axes="c", **BIASED)

    def call(self, x: Any) -> Any:
        q, k, v = self._query_dense(x), self._key_dense(x), self._value_dense(x)
        return self._output_dense(keras.ops.dot_product_attention(q, k, v))


class Flat(keras.layers.MultiHeadAttention):
    def _compute_attention(self, query: Any, key: Any, value: Any, *_: Any) -> Any:
        return keras.ops.dot_product_attention(query, key, value), None


def flat() -> Any:
    return Flat(3, 4, **BIASED)


def causal(module: Any, x: Any) -> Any:
    return module(x, x, use_causal_mask=True)


def own(module: Any, groups: int = 1) -> dict[str, Any]:
    """Return the parameters; keras repeats grouped keys and values before attention."""
    found = {}
    parts = {"Q": "_query_dense", "K": "_key_dense", "V": "_value_dense", "O": "_output_dense"}
    for m, name in parts.items():
        repeats = groups if m in "KV" else 1
        part = getattr(module, name)
        kernel, bias = (keras.ops.convert_to_numpy(each) for each in (part.kernel, part.bias))
        found[m], found["b" + m] = np.repeat(kernel, repeats, axis=-2), np.repeat(bias, repeats, axis=0)
    return found


@pytest.mark.parametrize(
    ("make", "call"),
    [(layer, None), (layer, causal), (grouped, None), (model, None), (Written, None), (flat, None)],
    ids=["layer", "causal", "groups", "model", "written", "derived"],
)
def test_keras(make: Any, call: Any) -> None:
    binding = Keras(make, WIDTH, call)
    state = binding.init(3)
    found = reading.read(binding, state, WIDTH)
    inner = state.get_layer("inner") if make is model else state
    reading.assert_reads(found, **own(inner, groups=2 if make is grouped else 1))
    reading.assert_forward(binding, state, found, causal=call is causal)
    assert "_compute_attention" not in vars(inner)


def test_seeds_reach_the_initialiser_and_no_generator_is_touched() -> None:
    from keras.src.random.seed_generator import global_seed_generator

    def states() -> list[Any]:
        arrays = [np.random.get_state(legacy=False)["state"]["key"], numbers_of(global_seed_generator().state)]  # noqa: NPY002
        if keras.backend.backend() == "torch":
            arrays.append(pytest.importorskip("torch").get_rng_state().numpy())
        return [random.getstate(), *(each.tolist() for each in arrays)]

    binding = Keras(layer, WIDTH)
    keras.utils.set_random_seed(7)
    generator, before = global_seed_generator(), states()
    first, again, other = (reading.read(binding, binding.init(seed), WIDTH)["Q"] for seed in (1, 1, 2))
    assert before == states()
    assert generator is global_seed_generator()
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).min() > 0


class Random(keras.layers.Layer):
    """Attention whose outputs are random in training, or always; without `masked`, training hides no positions."""

    def __init__(self, dropout: float, after: float, always: bool, masked: bool = True) -> None:
        super().__init__()
        self.inner = keras.layers.MultiHeadAttention(4, 12, dropout=dropout)
        self.after, self.always, self.masked = keras.layers.Dropout(after), always, masked

    def call(self, x: Any, training: bool = False) -> Any:
        masked, training = self.masked or not training, training or self.always
        return self.after(self.inner(x, x, use_causal_mask=masked, training=training), training=training)


@pytest.mark.parametrize(("dropout", "after"), [(0.3, 0.0), (0.0, 0.3)])
def test_dropout_is_named(dropout: float, after: float) -> None:
    usual = inspect(lambda: Random(dropout, after, always=False), WIDTH, draws=2)
    always = inspect(lambda: Random(dropout, after, always=True), WIDTH, draws=2)
    text = "two calls on one input differ: dropout"
    assert (usual.blamed, always.blamed) == ((), (text,))
    assert any(str(note).startswith(f"train: {text}") for note in usual.notes)


def test_paths_without_options_have_a_name() -> None:
    found = inspect(lambda: Random(0.0, 0.0, always=False, masked=False), WIDTH, draws=2)
    assert found.blamed == ("two paths of this module differ in mask: as called: causal; train: no mask",)


def test_parameters() -> None:
    # With dropout, keras scales queries and uses no single attention function.
    binding = bind(lambda: keras.layers.MultiHeadAttention(3, 4, dropout=0.5, **BIASED), WIDTH)
    assert isinstance(binding, Keras)
    state = binding.init(0)
    reading.assert_forward(binding, state, reading.read(binding, state, WIDTH))
    found = [values for path, values in binding.parameters(state).items() if path.endswith("query/kernel")]
    np.testing.assert_array_equal(found, [own(state)["Q"]])


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["groups and not one_by_one", "generator", "groups and one_by_one and not own"])
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="these tests run on JAX")
def test_backend_jax(name: str) -> None:
    pytest.importorskip("jax")
    # Every operation is compiled per shape there: backend-independent tests are skipped.
    arguments = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        name,
        __file__,
    ]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    result = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout


@pytest.mark.parametrize(
    ("dtype", "roundoff"), [("float32", 2.0**-24), ("mixed_bfloat16", 2.0**-8), ("mixed_float16", 2.0**-11)]
)
def test_precision_is_that_of_attention(dtype: str, roundoff: float) -> None:
    binding = Keras(lambda: keras.layers.MultiHeadAttention(3, 4, dtype=dtype), WIDTH)
    state = binding.init(0)
    assert binding.precision == roundoff
    x = np.random.default_rng(0).standard_normal((13, 1, WIDTH))
    own = np.einsum("bln,nhd->bhld", x, numbers_of(state._query_dense.kernel))
    np.testing.assert_allclose(reading.run(binding, state, x)[1], own, atol=20 * roundoff)


def test_inspection() -> None:
    def make() -> Any:
        return keras.layers.GroupQueryAttention(12, 4, 2)

    found = inspect(make, 48, causal)
    # Glorot's variance is 2/(fan-in + fan-out); keys and values of two heads have fan-out 24.
    wide = (96 / 72) ** 0.5
    found.require(num_heads=4, kv_heads=2, mask="causal", query_law="uniform", bias=False, blamed=False)
    found.require(query_std=1.0, key_std=wide, value_std=wide, output_std=1.0)


@pytest.mark.parametrize("weights", ["gaussian", "own"])
@pytest.mark.parametrize(
    "make",
    [lambda: keras.layers.MultiHeadAttention(3, 4), lambda: keras.layers.GroupQueryAttention(4, 4, 2)],
    ids=["layer", "groups"],
)
def test_layers_without_a_name_are_run_at_once_as_they_are_one_by_one(make: Any, weights: str) -> None:
    reading.assert_at_once(inspect(make, width=WIDTH).subject(weights=weights))
