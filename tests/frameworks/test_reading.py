"""Layers of flax, keras and equinox are read, drawn and filled correctly, wherever they call attention."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import softmax

from attncheck import inspect
from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.subject import ModuleSubject
from attncheck.frameworks.trace import CoreTrace, Trace

from . import reading
from .rows import Row, assert_says, each, row

jax: Any
eqx: Any
keras: Any
jax, eqx, keras, torch = (pytest.importorskip(name) for name in ("jax", "equinox", "keras", "torch"))
nn: Any = pytest.importorskip("flax.linen")
nnx: Any = pytest.importorskip("flax.nnx")

from attncheck.frameworks.jax_trace import watching  # noqa: E402  # only where jax is
from attncheck.frameworks.keras import numbers_of  # noqa: E402  # only where keras is

from .torch_layers import multi_head  # noqa: E402  # only where torch is

HEADS, SIZE, WIDTH = 4, 3, 12
ON_JAX = keras.backend.backend() == "jax"
BIASED, NORMAL = {"bias_init": nn.initializers.normal(1.0)}, {"bias_initializer": "normal"}
LETTERS = {"Q": "query", "K": "key", "V": "value", "O": "out"}

# Modules ------------------------------------------------------------------------------------------


class Idle(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        nn.Dense(4, name="idle")(x)
        return nn.SelfAttention(num_heads=3, name="used")(x)


class Grouped(nnx.Module):
    """Four heads in two groups, by JAX's function, compiled, in nnx."""

    def __init__(self, rngs: Any) -> None:
        for name, heads in (("query", 4), ("key", 2), ("value", 2)):
            setattr(self, name, nnx.LinearGeneral(WIDTH, (heads, 3), rngs=rngs, **BIASED))
        self.out = nnx.LinearGeneral((4, 3), WIDTH, axis=(-2, -1), rngs=rngs, **BIASED)

    @nnx.jit
    def __call__(self, x: Any) -> Any:
        return self.out(jax.nn.dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True))


class EquinoxBlock(eqx.Module):
    inner: Any

    def __init__(self, key: Any) -> None:
        self.inner = of_equinox(key)

    @eqx.filter_jit
    def __call__(self, x: Any) -> Any:
        return self.inner(x, x, x)


class Random(keras.layers.Layer):
    """Attention whose outputs are random in training, or always; without `masked`, training hides no positions."""

    def __init__(self, dropout: float = 0.0, after: float = 0.0, always: bool = False, masked: bool = True) -> None:
        super().__init__()
        self.inner = keras.layers.MultiHeadAttention(4, 12, dropout=dropout)
        self.after, self.always, self.masked = keras.layers.Dropout(after), always, masked

    def call(self, x: Any, training: bool = False) -> Any:
        masked, training = self.masked or not training, training or self.always
        return self.after(self.inner(x, x, use_causal_mask=masked, training=training), training=training)


def of_linen() -> Any:
    return nn.MultiHeadDotProductAttention(num_heads=HEADS, **BIASED)


def of_nnx(rngs: Any) -> Any:
    return nnx.MultiHeadAttention(HEADS, WIDTH, rngs=rngs, decode=False, **BIASED)


def of_equinox(key: Any) -> Any:
    biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
    return eqx.nn.MultiheadAttention(HEADS, WIDTH, qk_size=5, vo_size=SIZE, key=key, **biases)


def of_keras(**fields: Any) -> Any:
    return keras.layers.MultiHeadAttention(HEADS, SIZE, **NORMAL, **fields)


def grouped() -> Any:
    return keras.layers.GroupQueryAttention(SIZE, HEADS, 2, **NORMAL)


def linen_causal(module: Any, x: Any) -> Any:
    return module(x, mask=nn.make_causal_mask(x[..., 0]))


def equinox_causal(module: Any, x: Any) -> Any:
    mask = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
    return jax.vmap(lambda sequence: module(sequence, sequence, sequence, mask=mask))(x)


def keras_causal(module: Any, x: Any) -> Any:
    return module(x, x, use_causal_mask=True)


# Parameters ---------------------------------------------------------------------------------------


def of_linen_part(state: Any, name: str) -> tuple[Any, Any]:
    """Return the kernel and the bias of a projection."""
    part = state.variables["params"][name]
    return part["kernel"], part["bias"]


def of_nnx_part(state: Any, name: str) -> tuple[Any, Any]:
    part = getattr(state, name)
    return part.kernel[...], part.bias[...]


def of_equinox_part(state: Any, name: str) -> tuple[Any, Any]:
    part = getattr(getattr(state, "inner", state), f"{name.replace('out', 'output')}_proj")
    if name == "out":
        return part.weight.T.reshape(HEADS, -1, WIDTH), part.bias
    return part.weight.T.reshape(WIDTH, HEADS, -1), part.bias.reshape(HEADS, -1)


def of_keras_part(state: Any, name: str) -> tuple[Any, Any]:
    """Return the kernel and the bias; keras repeats grouped keys and values before attention."""
    part = getattr(state, f"_{name.replace('out', 'output')}_dense")
    repeats = 2 if name in ("key", "value") and isinstance(state, keras.layers.GroupQueryAttention) else 1
    return np.repeat(numbers_of(part.kernel), repeats, axis=-2), np.repeat(numbers_of(part.bias), repeats, axis=0)


class Module(NamedTuple):
    make: Any
    call: Any
    part: Callable[[Any, str], tuple[Any, Any]]
    causal: bool
    query: str = ""  # the name of its matrix in the adapter

    def parameters(self, state: Any) -> dict[str, Any]:
        arrays = {}
        for letter, name in LETTERS.items():
            arrays[letter], arrays[f"b{letter}"] = self.part(state, name)
        return arrays


MODULES = {
    "linen": Module(of_linen, linen_causal, of_linen_part, True, "['params']['query']['kernel']"),
    "nnx": Module(of_nnx, None, of_nnx_part, False),
    "nnx, groups": Module(Grouped, None, of_nnx_part, True, "['query']['kernel']"),
    "equinox": Module(of_equinox, equinox_causal, of_equinox_part, True, ".query_proj.weight"),
    "equinox, compiled": Module(EquinoxBlock, None, of_equinox_part, False),
    "keras": Module(of_keras, keras_causal, of_keras_part, True, "multi_head_attention/query/kernel"),
    "keras, groups": Module(grouped, None, of_keras_part, False),
}


@pytest.mark.parametrize("name", MODULES)
def test_matrices(name: str) -> None:
    module = MODULES[name]
    adapter: Any = adapter_of(module.make, WIDTH, module.call)
    state = adapter.make(3)
    if "nnx" in name or name == "equinox, compiled":  # compiled before the inspection
        state(np.zeros((1, WIDTH) if "equinox" in name else (1, 1, WIDTH)))
    matrices = reading.read(adapter, state, WIDTH)
    reading.assert_reads(matrices, **module.parameters(state))
    reading.assert_forward(adapter, state, matrices, module.causal)
    if module.query:
        drawn = reading.assert_seeds(adapter)
        assert len(drawn) == 8
        query = module.parameters(adapter.make(1))["Q"]
        (array,) = (array for key, array in drawn.items() if key.endswith(module.query))
        np.testing.assert_array_equal(np.sort(array, axis=None), np.sort(query, axis=None))
        doubled = adapter.parameters(adapter.filled(state, {key: 2.0 * array for key, array in drawn.items()}))
        assert doubled.keys() == drawn.keys()
        for key, array in drawn.items():
            np.testing.assert_allclose(doubled[key], 2.0 * array, rtol=1e-6, err_msg=key)


# Draws --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "weights"),
    [
        (multi_head(WIDTH, 2), "gaussian"),
        (multi_head(WIDTH, 2), "own"),
        (of_nnx, "gaussian"),
        (lambda: keras.layers.MultiHeadAttention(HEADS, SIZE), "own"),
    ],
    ids=["packed", "own weights", "nnx", "keras"],
)
def test_each_draw_has_a_module(make: Any, weights: str) -> None:
    """Draws of a call are those of single calls with one generator, and differ; biases are 0 unless drawn."""
    subject: ModuleSubject = inspect(make, width=WIDTH, draws=2).subject(weights=weights)
    x = np.broadcast_to(np.random.default_rng(0).standard_normal((3, WIDTH)), (3, 3, WIDTH))
    rng = np.random.default_rng(1)
    singles = [subject(subject.layer, x[:1], rng) for _ in x]
    for name, array in subject(subject.layer, x, np.random.default_rng(1)).items():
        np.testing.assert_array_equal(array, np.concatenate([single[name] for single in singles]), err_msg=name)
        assert len(np.unique(array.reshape(3, -1), axis=0)) == 3
    for name, array in subject.arrays(np.random.default_rng(0)).items():
        assert array.any() == ("bias" not in name), name


def drawn_by_numpy(key: Any, shape: Any, dtype: Any = None) -> Any:
    return jax.numpy.asarray(np.random.default_rng(int(key[0])).standard_normal(shape), dtype)


@pytest.mark.parametrize(
    ("make", "compiled"),
    [(of_linen, True), (Grouped, True), (lambda: nn.SelfAttention(num_heads=3, kernel_init=drawn_by_numpy), False)],
    ids=["linen", "nnx", "by NumPy"],
)
def test_many_modules_are_initialised_as_one_is(make: Any, compiled: bool) -> None:
    """By one compiled initialiser, or one by one if its draws differ."""
    adapter: Any = adapter_of(make, WIDTH)
    for seed in (3, 4):
        single, arrays = adapter.parameters(adapter.make(seed)), adapter.initialised(seed)
        assert single.keys() == arrays.keys()
        for name in single:
            np.testing.assert_allclose(arrays[name], single[name], rtol=1e-5, atol=1e-6)
    assert (adapter._compiled_make is not None) == compiled


def test_parameters_that_are_never_used() -> None:
    x = np.ones((1, 2, WIDTH))
    for make, unused in ((Idle, ("['params']['idle']['bias']", "['params']['idle']['kernel']")), (of_nnx, ())):
        adapter: Any = adapter_of(make, WIDTH)
        assert adapter.unused(adapter.make(0), x, "") == unused


def test_a_module_of_nnx_stays_as_it_was() -> None:
    adapter: Any = adapter_of(
        lambda rngs: nnx.MultiHeadAttention(3, WIDTH, dropout_rate=0.5, rngs=rngs),
        WIDTH,
        lambda module, x: module(x, decode=False, deterministic=False),
    )
    state = adapter.make(0)
    attention, before = state.attention_fn, jax.tree.leaves(nnx.state(state, nnx.RngCount))
    x = np.random.default_rng(0).standard_normal((1, 4, WIDTH))
    assert len(reading.cores_of(adapter, state, x)[1]) == 1
    assert state.attention_fn is attention
    assert before == jax.tree.leaves(nnx.state(state, nnx.RngCount))
    adapter.call(state, jax.numpy.asarray(x))
    assert before != jax.tree.leaves(nnx.state(state, nnx.RngCount))


def test_keras_touches_no_generator() -> None:
    from keras.src.random.seed_generator import global_seed_generator

    def states() -> list[Any]:
        arrays = [np.random.get_state(legacy=False)["state"]["key"], numbers_of(global_seed_generator().state)]  # noqa: NPY002
        return [random.getstate(), *(array.tolist() for array in (*arrays, torch.get_rng_state().numpy()))]

    adapter = adapter_of(of_keras, WIDTH)
    keras.utils.set_random_seed(7)
    generator, before = global_seed_generator(), states()
    reading.assert_seeds(adapter)
    reading.run(adapter, adapter.make(1), np.ones((2, 2, WIDTH)))
    assert before == states()
    assert generator is global_seed_generator()


# Attention of keras -------------------------------------------------------------------------------


def test_paths() -> None:
    assert adapter_of(lambda: keras.layers.Activation("relu"), WIDTH).paths == ("",)
    # With dropout, keras scales queries and uses no single attention function.
    adapter = adapter_of(lambda: of_keras(dropout=0.5), WIDTH)
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


@pytest.mark.parametrize(
    ("make", "dtype", "roundoff"),
    [
        (lambda dtype: lambda: nn.MultiHeadDotProductAttention(HEADS, dtype=dtype), "bfloat16", 2.0**-8),
        (lambda dtype: lambda rngs: nnx.MultiHeadAttention(HEADS, WIDTH, dtype=dtype, rngs=rngs), "bfloat16", 2.0**-8),
        (lambda dtype: lambda: keras.layers.MultiHeadAttention(HEADS, SIZE, dtype=dtype), "float32", 2.0**-24),
        (lambda dtype: lambda: keras.layers.MultiHeadAttention(HEADS, SIZE, dtype=dtype), "mixed_bfloat16", 2.0**-8),
    ],
)
def test_precision_is_that_of_attention(make: Any, dtype: str, roundoff: float) -> None:
    adapter: Any = adapter_of(make(dtype), WIDTH)
    state, x = adapter.make(0), np.random.default_rng(0).standard_normal((13, 2, WIDTH))
    (core,) = reading.cores_of(adapter, state, x)[1]
    assert adapter.precision == roundoff
    np.testing.assert_allclose(core.weights.sum(-1), 1, atol=20 * roundoff)


@pytest.mark.sampled
@pytest.mark.skipif(ON_JAX, reason="these tests run on JAX")
def test_keras_on_jax() -> None:
    """Every operation is compiled for each shape: a few tests."""
    tests = {
        __file__: ["matrices[keras, groups]", "paths", "keras_touches_no_generator"],
        __file__.replace("test_reading", "test_taps"): [
            "every_module_and_attention_is_tapped[keras]",
            "keras_takes_steps_on_torch_only",
        ],
    }
    names = [f"{file}::test_{name}" for file, names in tests.items() for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *names]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout
    assert f"{len(names)} passed" in result.stdout


# Inspections --------------------------------------------------------------------------------------

ONES = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 1.0)
TRUNCATED = ONES | {"query_law": "truncated normal", "bias": True}
UNIFORM = dict.fromkeys(ONES, 3**-0.5) | {"query_law": "uniform", "num_heads": HEADS, "bias": False}
# Glorot's variance is 2/(fan-in + fan-out); keys and values of two heads have fan-out 6.
GLOROT = ONES | dict.fromkeys(("key_std", "value_std"), (24 / 18) ** 0.5) | {"query_law": "uniform", "kv_heads": 2}
BIASES = "note: queries, keys, values and outputs have biases of standard deviation "
DROPOUT = "two calls on one input differ: dropout"
IN_TRAINING = f"note: train: {DROPOUT}"
TWO_MASKS = "wrong: two paths of this module differ in mask: as called: causal; train: no mask"
KERAS_CAUSAL: dict[str, Any] = {"options": {"call": keras_causal}, "mask": "causal"}
ROWS = [
    row("linen", of_linen, BIASES, require=TRUNCATED),
    row("nnx", of_nnx, BIASES, require=TRUNCATED, options={"call": linen_causal}, mask="causal"),
    row("equinox", lambda key: eqx.nn.MultiheadAttention(HEADS, WIDTH, key=key), require=UNIFORM),
    row("groups", lambda: keras.layers.GroupQueryAttention(SIZE, HEADS, 2), require=GLOROT, **KERAS_CAUSAL),
    row("dropout of weights", lambda: Random(dropout=0.3), IN_TRAINING, mask="causal"),
    row("dropout after", lambda: Random(after=0.3), IN_TRAINING, mask="causal"),
    row("always dropout", lambda: Random(after=0.3, always=True), f"wrong: {DROPOUT}", IN_TRAINING, known=False),
    row("no mask in training", lambda: Random(masked=False), TWO_MASKS, mask="causal"),
]


@each(ROWS)
def test_a_layer(row: Row) -> None:
    options = {"width": WIDTH, "draws": 16 if row.require else 2} | row.options
    assert_says(dataclasses.replace(row, options=options))


# Attention cores of JAX modules are found in the dataflow, whatever computes them -----------------


BATCH, LENGTH = 2, 5
jnp = jax.numpy


class Layer(nn.Module):
    """Attention (B, L, H, d) of a function, between projections."""

    attention: Callable[..., Any]
    key_heads: int = HEADS

    @nn.compact
    def __call__(self, x: Any) -> Any:
        heads = (HEADS, self.key_heads, self.key_heads)
        q, k, v = (nn.DenseGeneral((h, SIZE), name=n)(x) for n, h in zip(("query", "key", "value"), heads, strict=True))
        return nn.DenseGeneral(WIDTH, axis=(-2, -1), name="out")(self.attention(q, k, v))


def einsums(scores: str, values: str, axis: int = -1) -> Any:
    """Return attention by products of arrays with these letters, in this order."""

    def product(letters: str, weights: Any = None, **arrays: Any) -> Any:
        inputs = letters.partition("->")[0].split(",")
        return jnp.einsum(letters, *(arrays.get(name, weights) for name in inputs))

    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(product(scores, bqhd=q, bkhd=k) / 2, axis)
        return product(values, weights=weights, bkhd=v)

    return attention


def sinks(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    wide = jnp.concatenate([scores, jnp.zeros((*scores.shape[:-1], 1))], axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(wide)[..., :-1], v)


def turned(q: Any, k: Any, v: Any) -> Any:
    """Heads before the batch in the weights."""
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2).transpose(1, 0, 2, 3)
    return (weights @ v.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)


def flattened(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (each.swapaxes(1, 2).reshape(-1, each.shape[1], SIZE) for each in (q, k, v))
    heads = jax.nn.softmax(jnp.where(True, q @ k.mT / 2, -jnp.inf)) @ v
    return heads.reshape(-1, HEADS, *heads.shape[1:]).swapaxes(1, 2)


def listed(q: Any, k: Any, v: Any) -> Any:
    one = [jax.nn.softmax(q[:, :, h] @ k[:, :, h].mT / 2) @ v[:, :, h] for h in range(HEADS)]
    return jnp.stack(one, axis=2)


def mapped(q: Any, k: Any, v: Any) -> Any:
    def one(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T / 2) @ v

    return jax.vmap(jax.vmap(one, in_axes=1, out_axes=1))(q, k, v)


def unnormalised(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2, v)


def linear(feature: Callable[[Any], Any]) -> Any:
    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k = feature(q), feature(k)
        heads = jnp.einsum("blhd,bhde->blhe", q, jnp.einsum("blhd,blhe->bhde", k, v))
        return heads / jnp.einsum("blhd,bhd->blh", q, k.sum(1))[..., None]

    return attention


class Learned(nn.Module):
    """Attention with a query that is a parameter."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        q = jnp.broadcast_to(self.param("query", nn.initializers.normal(1.0), (WIDTH,)), x.shape)
        return jax.nn.softmax(q @ nn.Dense(WIDTH)(x).mT) @ nn.Dense(WIDTH)(x)


class Perceptron(nn.Module):
    activation: Callable[[Any], Any]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(WIDTH)(self.activation(nn.Dense(3 * WIDTH)(x)) * nn.Dense(3 * WIDTH)(x))


class Sum(nn.Module):
    """Layers side by side, by name."""

    layers: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return sum(Layer(attention, name=name)(x) for name, attention in self.layers.items())


def inputs(length: int = LENGTH) -> Any:
    return np.random.default_rng(0).standard_normal((BATCH, length, WIDTH))


def sorted_rows(*arrays: Any) -> Any:
    """Return matrices (N, L, ·) of each sequence and head, side by side, in a fixed order."""
    rows = np.concatenate([each.reshape(len(each), -1) for each in arrays], axis=1)
    return rows[np.argsort(rows[:, 0])]


def expected(params: Any, x: Any) -> list[Any]:
    """Return queries, keys, values and weights, (N, L, ·)."""
    parts = (params[name] for name in ("query", "key", "value"))
    q, k, v = (np.einsum("bln,nhd->bhld", x, p["kernel"]) + np.asarray(p["bias"])[:, None] for p in parts)
    arrays = q, k, v, softmax(q @ k.swapaxes(-1, -2) / 2, axis=-1)
    return [array.reshape(-1, *array.shape[2:]) for array in arrays]


ATTENTIONS = {
    "plain": einsums("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"),
    "values_first": einsums("bqhd,bkhd->bhqk", "bkhd,bhqk->bqhd"),
    "keys_first": einsums("bkhd,bqhd->bhqk", "bhqk,bkhd->bqhd"),
    "both_first": einsums("bkhd,bqhd->bhqk", "bkhd,bhqk->bqhd"),
    "heads_last": einsums("bqhd,bkhd->bqkh", "bqkh,bkhd->bqhd", -2),
    "heads_last_swapped": einsums("bkhd,bqhd->bqkh", "bkhd,bqkh->bqhd", -2),
    "between": einsums("bqhd,bkhd->bqhk", "bqhk,bkhd->bqhd"),
    "transposed": einsums("bqhd,bkhd->bhkq", "bhkq,bkhd->bqhd", -2),
    "transposed_swapped": einsums("bkhd,bqhd->bhkq", "bkhd,bhkq->bqhd", -2),
    "heads_first": einsums("bqhd,bkhd->hbqk", "hbqk,bkhd->bqhd"),
    "turned": turned,
    "flattened": flattened,
    "mapped": mapped,
}


@pytest.mark.parametrize("length", [1, LENGTH])
def test_hand_written(length: int) -> None:
    """All in one module, which is compiled once; cores come in its order."""
    adapter: Any = adapter_of(lambda: Sum(ATTENTIONS), WIDTH)
    state, x = adapter.make(0), inputs(length)
    y, cores = reading.cores_of(adapter, state, x)
    for (name, own), core in zip(((n, state.variables["params"][n]) for n in ATTENTIONS), cores, strict=True):
        found = core.query, core.key, core.value, core.weights
        np.testing.assert_allclose(sorted_rows(*found), sorted_rows(*expected(own, x)), atol=1e-5, err_msg=name)
    np.testing.assert_allclose(y, adapter.run(state, x, Trace()), atol=1e-4)
    reading.assert_replaced(adapter, state, x, atol=1e-4)


#: Modules, and their numbers of cores.
COUNTS: dict[str, tuple[Any, int]] = {
    "mlp": (lambda: Perceptron(nn.softplus), 0),
    "gates": (lambda: Perceptron(nn.softmax), 0),
    "elu": (lambda: Layer(linear(lambda x: nn.elu(x) + 1)), 0),
    "exp": (lambda: Layer(linear(jnp.exp)), 0),
    "softmax": (lambda: Layer(linear(nn.softmax)), 0),
    "no softmax": (lambda: Layer(unnormalised), 1),
    "groups": (lambda: Layer(jax.nn.dot_product_attention, 2), 1),
    "sinks": (lambda: Layer(sinks), 1),
    "learned": (Learned, 1),
    "list": (lambda: Layer(listed), HEADS),
    "layers": (lambda: nn.Sequential([Layer(mapped), Perceptron(nn.gelu), nn.remat(nn.SelfAttention)(HEADS)]), 2),
    "mixed": (lambda: nn.Sequential([Layer(linear(nn.relu)), nn.jit(nn.SelfAttention)(HEADS)]), 1),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("length", [1, LENGTH])
def test_number_of_cores(name: str, length: int) -> None:
    """Shapes alone are evaluated; nothing is compiled."""
    (make, count), x, found = COUNTS[name], jnp.zeros((BATCH, length, WIDTH)), []
    module = make()

    def core(*given: Any) -> Any:
        found.append(given)
        return given[-1]

    params = jax.eval_shape(module.init, jax.random.key(0), x)
    assert jax.eval_shape(watching(module.apply, core), params, x).shape == x.shape
    assert len(found) == count
