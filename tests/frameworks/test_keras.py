"""keras layers are read correctly, on torch and on JAX, and no generator is touched."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncheck import inspect
from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.keras import numbers_of
from attncheck.frameworks.trace import CoreTrace, Trace

from . import reading

os.environ.setdefault("KERAS_BACKEND", "torch")
keras: Any = pytest.importorskip("keras")

HEADS, SIZE, WIDTH = 4, 3, 12
ON_JAX = keras.backend.backend() == "jax"
BIASED = {"bias_initializer": "normal"}
PARTS = {"Q": "_query_dense", "K": "_key_dense", "V": "_value_dense", "O": "_output_dense"}


def layer(**given: Any) -> Any:
    return keras.layers.MultiHeadAttention(HEADS, SIZE, **BIASED, **given)


def dropping() -> Any:
    """Return a layer that scales queries and uses no single attention function, as keras does with dropout."""
    return layer(dropout=0.5)


def grouped() -> Any:
    return keras.layers.GroupQueryAttention(SIZE, HEADS, 2, **BIASED)


def model() -> Any:
    inputs = keras.Input((None, WIDTH))
    return keras.Model(inputs, layer(dropout=0.4, name="inner")(inputs, inputs))


class OneTensor(keras.layers.MultiHeadAttention):
    def _compute_attention(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        scores = keras.ops.einsum("bqhd,bkhd->bhqk", query, key) / SIZE**0.5
        return keras.ops.einsum("bhqk,bkhd->bqhd", keras.ops.softmax(scores), value), None


def derived() -> Any:
    return OneTensor(HEADS, SIZE, **BIASED)


class Single(keras.layers.Layer):
    """A layer with parts built at the first call, whose `_compute_attention` returns one tensor."""

    def build(self, shape: Any) -> None:
        for part in ("query", "key", "value"):
            made = keras.layers.EinsumDense("abc,cde->abde", (None, HEADS, SIZE), bias_axes="de", **BIASED)
            setattr(self, f"_{part}_dense", made)
        self._output_dense = keras.layers.EinsumDense("abde,dec->abc", (None, WIDTH), bias_axes="c", **BIASED)

    def _compute_attention(self, query: Any, key: Any, value: Any) -> Any:
        return keras.ops.dot_product_attention(query, key, value)

    def call(self, x: Any) -> Any:
        return self._output_dense(
            self._compute_attention(self._query_dense(x), self._key_dense(x), self._value_dense(x))
        )


def causal(module: Any, x: Any) -> Any:
    return module(x, x, use_causal_mask=True)


def own(module: Any) -> dict[str, Any]:
    """Return the parameters; keras repeats grouped keys and values before attention."""
    found = {}
    for m, name in PARTS.items():
        part, repeats = getattr(module, name), 2 if m in "KV" and "Group" in type(module).__name__ else 1
        kernel, bias = numbers_of(part.kernel), numbers_of(part.bias)
        found[m], found["b" + m] = np.repeat(kernel, repeats, axis=-2), np.repeat(bias, repeats, axis=0)
    return found


@pytest.mark.parametrize(
    ("make", "call"),
    [(layer, causal), (grouped, None), (model, None), (dropping, None), (Single, None), (derived, None)],
    ids=["causal", "groups", "model", "dropout", "one tensor", "derived"],
)
def test_matrices(make: Any, call: Any) -> None:
    adapter = adapter_of(make, WIDTH, call)
    state = adapter.make(3)
    found = reading.read(adapter, state, WIDTH)
    inner = state.get_layer("inner") if make is model else state
    reading.assert_reads(found, **own(inner))
    reading.assert_forward(adapter, state, found, causal=call is causal)
    assert "_compute_attention" not in vars(inner)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("make", [layer, dropping, grouped, derived, Single])
def test_cores(make: Any, length: int) -> None:
    adapter = adapter_of(make, WIDTH)
    state, x = adapter.make(0), np.random.default_rng(0).standard_normal((2, length, WIDTH))
    _, found_cores = reading.cores_of(adapter, state, x)
    if not found_cores and length == 1 and not ON_JAX:
        pytest.skip("torch.einsum multiplies entries, without a product of matrices, if L = 1")
    (core,) = found_cores
    matrices = own(state)
    q, k, v = (np.einsum("bln,nhd->bhld", x, matrices[m]) + matrices["b" + m][:, None] for m in "QKV")
    weights = np.exp(q @ k.swapaxes(-1, -2) / SIZE**0.5)
    weights /= weights.sum(-1, keepdims=True)
    # The scale may be in the queries.
    factor = SIZE**-0.5 if np.ptp(core.query) < 0.8 * np.ptp(q) else 1
    found = core.query, core.key, core.value, core.weights
    for one, right in zip(found, (q * factor, k, v, weights), strict=True):
        np.testing.assert_allclose(one.reshape(right.shape), right, atol=1e-5)
    reading.assert_replaced(adapter, state, x)


def test_paths() -> None:
    assert adapter_of(Single, WIDTH).paths == ("",)
    adapter = adapter_of(dropping, WIDTH)
    assert adapter.paths == ("", "train", "scores")
    state, x = adapter.make(0), np.random.default_rng(0).standard_normal((2, 5, WIDTH))
    trace = CoreTrace()
    adapter.run(state, x, trace, "train")
    (core,) = trace.cores
    dropped = (core.weights == 0).mean()  # PyTorch is watched without dropout
    assert 0.2 < dropped < 0.8 if ON_JAX else dropped == 0
    assert np.abs(adapter.run(state, x, Trace(), "train") - adapter.run(state, x, Trace(), "")).max() > 0.01
    (again,) = reading.cores_of(adapter, state, x)[1]
    assert (again.weights > 0).all()


def test_seeds_reach_the_initialiser_and_no_generator_is_touched() -> None:
    from keras.src.random.seed_generator import global_seed_generator

    def states() -> list[Any]:
        arrays = [np.random.get_state(legacy=False)["state"]["key"], numbers_of(global_seed_generator().state)]  # noqa: NPY002
        if not ON_JAX:
            arrays.append(pytest.importorskip("torch").get_rng_state().numpy())
        return [random.getstate(), *(each.tolist() for each in arrays)]

    adapter = adapter_of(layer, WIDTH)
    keras.utils.set_random_seed(7)
    generator, before = global_seed_generator(), states()
    drawn = reading.assert_seeds(adapter)
    state = adapter.make(1)
    reading.run(adapter, state, np.ones((2, 2, WIDTH)))
    assert before == states()
    assert generator is global_seed_generator()
    found = [values for path, values in drawn.items() if path.endswith("query/kernel")]
    np.testing.assert_array_equal(found, [own(state)["Q"]])


class Random(keras.layers.Layer):
    """Attention whose outputs are random in training, or always; without `masked`, training hides no positions."""

    def __init__(self, dropout: float, after: float, always: bool, masked: bool = True) -> None:
        super().__init__()
        self.inner = keras.layers.MultiHeadAttention(4, 12, dropout=dropout)
        self.after, self.always, self.masked = keras.layers.Dropout(after), always, masked

    def call(self, x: Any, training: bool = False) -> Any:
        masked, training = self.masked or not training, training or self.always
        return self.after(self.inner(x, x, use_causal_mask=masked, training=training), training=training)


@pytest.mark.parametrize(("dropout", "after", "always"), [(0.3, 0.0, False), (0.0, 0.3, False), (0.0, 0.3, True)])
def test_dropout_is_named(dropout: float, after: float, always: bool) -> None:
    found = inspect(lambda: Random(dropout, after, always), WIDTH, draws=2)
    text = "two calls on one input differ: dropout"
    assert found.blamed == ((text,) if always else ())
    assert always or any(str(note).startswith(f"train: {text}") for note in found.notes)


def test_paths_without_options_have_a_name() -> None:
    found = inspect(lambda: Random(0.0, 0.0, always=False, masked=False), WIDTH, draws=2)
    assert found.blamed == ("two paths of this module differ in mask: as called: causal; train: no mask",)


@pytest.mark.parametrize(
    ("dtype", "roundoff"), [("float32", 2.0**-24), ("mixed_bfloat16", 2.0**-8), ("mixed_float16", 2.0**-11)]
)
def test_precision_is_that_of_attention(dtype: str, roundoff: float) -> None:
    adapter = adapter_of(lambda: keras.layers.MultiHeadAttention(HEADS, SIZE, dtype=dtype), WIDTH)
    state = adapter.make(0)
    assert adapter.precision == roundoff
    x = np.random.default_rng(0).standard_normal((13, 2, WIDTH))
    (core,) = reading.cores_of(adapter, state, x)[1]
    query = np.einsum("bln,nhd->bhld", x, numbers_of(state._query_dense.kernel))
    np.testing.assert_allclose(core.query.reshape(query.shape), query, atol=20 * roundoff)
    np.testing.assert_allclose(core.weights.sum(-1), 1, atol=20 * roundoff)


def test_inspection() -> None:
    found = inspect(lambda: keras.layers.GroupQueryAttention(SIZE, HEADS, 2), WIDTH, causal, draws=16)
    # Glorot's variance is 2/(fan-in + fan-out); keys and values of two heads have fan-out 6.
    wide = (24 / 18) ** 0.5
    found.require(num_heads=4, kv_heads=2, mask="causal", query_law="uniform", bias=False, blamed=False)
    found.require(query_std=1.0, key_std=wide, value_std=wide, output_std=1.0)


@pytest.mark.parametrize(
    ("make", "weights"),
    [(lambda: keras.layers.MultiHeadAttention(HEADS, SIZE), "own"), (grouped, "gaussian")],
    ids=["layer", "groups"],
)
def test_each_draw_has_a_layer(make: Any, weights: str) -> None:
    reading.assert_a_module_per_draw(inspect(make, width=WIDTH, draws=2).subject(weights=weights))


#: Tests that are repeated on JAX, where every operation is compiled for each shape.
ON_BOTH = {
    "cores": [
        *(f"test_cores[{make}-5]" for make in ("layer", "dropping", "grouped", "derived", "Single")),
        "test_cores[derived-1]",
        "test_paths",
    ],
    "draws": [
        "test_seeds_reach_the_initialiser_and_no_generator_is_touched",
        "test_each_draw_has_a_layer[groups]",
    ],
    "widths": ["test_every_layer_and_attention_is_tapped[0.0]", "test_steps_are_taken_on_torch"],
}


@pytest.mark.sampled
@pytest.mark.parametrize("group", ON_BOTH)
@pytest.mark.skipif(ON_JAX, reason="these tests run on JAX")
def test_on_jax(group: str) -> None:
    pytest.importorskip("jax")
    of_widths = Path(__file__).with_name("test_widths_keras.py")
    names = [f"{of_widths if group == 'widths' else __file__}::{name}" for name in ON_BOTH[group]]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *names]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout
    assert f"{len(names)} passed" in result.stdout
