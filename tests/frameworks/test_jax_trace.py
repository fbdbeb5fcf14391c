"""Attention cores of JAX modules are found in the dataflow, whatever computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.jax_trace import watching
from attncheck.frameworks.trace import Trace

from .reading import assert_replaced, cores_of

nn: Any = pytest.importorskip("flax.linen")
jax: Any = pytest.importorskip("jax")

BATCH, HEADS, LENGTH, SIZE, WIDTH = 2, 4, 5, 3, 12
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
    """All in one module, which is compiled once."""
    adapter: Any = adapter_of(lambda: Sum(ATTENTIONS), WIDTH)
    state, x = adapter.make(0), inputs(length)
    y, cores = cores_of(adapter, state, x)
    for (name, own), core in zip(((n, state.variables["params"][n]) for n in ATTENTIONS), cores, strict=True):
        found = core.query, core.key, core.value, core.weights
        np.testing.assert_allclose(sorted_rows(*found), sorted_rows(*expected(own, x)), atol=1e-5, err_msg=name)
    np.testing.assert_allclose(y, adapter.run(state, x, Trace()), atol=1e-4)
    assert_replaced(adapter, state, x, atol=1e-4)


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


def test_cores_come_in_the_order_of_the_module() -> None:
    adapter: Any = adapter_of(lambda: Layer(listed), WIDTH)
    state, x = adapter.make(0), inputs()
    q = expected(state.variables["params"], x)[0].reshape(BATCH, HEADS, LENGTH, SIZE)
    for head, core in enumerate(cores_of(adapter, state, x)[1]):
        np.testing.assert_allclose(core.query, q[:, head], atol=1e-5)
    assert_replaced(adapter, state, x)
