"""flax layers are read correctly, wherever they call attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck import InputError, inspect
from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.trace import CoreTrace

from . import reading

nn: Any = pytest.importorskip("flax.linen")
nnx: Any = pytest.importorskip("flax.nnx")
jax: Any = pytest.importorskip("jax")

WIDTH = 12
BIASED = {"bias_init": nn.initializers.normal(1.0)}


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.remat(nn.SelfAttention)(num_heads=3, name="inner", **BIASED)(x)


class Grouped(nnx.Module):
    """Four heads in two groups, by JAX's function, compiled, in nnx."""

    def __init__(self, rngs: Any) -> None:
        for name, heads in (("query", 4), ("key", 2), ("value", 2)):
            setattr(self, name, nnx.LinearGeneral(WIDTH, (heads, 3), rngs=rngs, **BIASED))
        self.out = nnx.LinearGeneral((4, 3), WIDTH, axis=(-2, -1), rngs=rngs, **BIASED)

    @nnx.jit
    def __call__(self, x: Any) -> Any:
        return self.out(jax.nn.dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True))


class Mean(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(WIDTH)(x + x.mean(axis=1, keepdims=True))


class Idle(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        nn.Dense(4, name="idle")(x)
        return nn.SelfAttention(num_heads=3, name="used")(x)


def linen() -> Any:
    return nn.MultiHeadDotProductAttention(num_heads=3, **BIASED)


def of_nnx(rngs: Any) -> Any:
    return nnx.MultiHeadAttention(3, WIDTH, rngs=rngs, decode=False, **BIASED)


def causal(module: Any, x: Any) -> Any:
    return module(x, mask=nn.make_causal_mask(x[..., 0]))


PARTS = {"Q": "query", "K": "key", "V": "value", "O": "out"}
KINDS = (("", "kernel"), ("b", "bias"))


def linen_own(module: Any) -> dict[str, Any]:
    return {start + m: module[name][kind] for m, name in PARTS.items() for start, kind in KINDS}


def nnx_own(module: Any) -> dict[str, Any]:
    return {start + m: getattr(getattr(module, name), kind)[...] for m, name in PARTS.items() for start, kind in KINDS}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("make", "call"),
    [(linen, causal), (lambda: nn.jit(nn.SelfAttention)(num_heads=3, **BIASED), None), (Block, None)],
    ids=["causal", "compiled", "within"],
)
def test_linen(make: Any, call: Any) -> None:
    adapter: Any = adapter_of(make, WIDTH, call)
    state = adapter.make(3)
    found = reading.read(adapter, state, WIDTH)
    reading.assert_reads(
        found, **linen_own(state.variables["params"]["inner"] if make is Block else state.variables["params"])
    )
    reading.assert_forward(adapter, state, found, causal=call is causal)


@pytest.mark.parametrize("make", [of_nnx, Grouped], ids=["layer", "causal groups"])
def test_nnx(make: Any) -> None:
    adapter: Any = adapter_of(make, WIDTH)
    state = adapter.make(3)
    state(np.zeros((1, 1, WIDTH)))  # compiled before inspection
    found = reading.read(adapter, state, WIDTH)
    reading.assert_reads(found, **nnx_own(state))
    reading.assert_forward(adapter, state, found, causal=make is Grouped)


def test_module_of_nnx_stays_as_it_was() -> None:
    adapter: Any = adapter_of(
        lambda rngs: nnx.MultiHeadAttention(3, WIDTH, dropout_rate=0.5, rngs=rngs),
        WIDTH,
        lambda module, x: module(x, decode=False, deterministic=False),
    )
    state = adapter.make(0)
    attention, before = state.attention_fn, jax.tree.leaves(nnx.state(state, nnx.RngCount))
    x = np.random.default_rng(0).standard_normal((1, 4, WIDTH))
    trace = CoreTrace()
    adapter.run(state, x, trace)
    assert len(trace.cores) == 1
    assert state.attention_fn is attention
    assert before == jax.tree.leaves(nnx.state(state, nnx.RngCount))
    adapter.call(state, jax.numpy.asarray(x))
    assert before != jax.tree.leaves(nnx.state(state, nnx.RngCount))


def test_parameters_that_are_never_used() -> None:
    x = np.ones((1, 2, WIDTH))
    for make, unused in ((Idle, ("['params']['idle']['bias']", "['params']['idle']['kernel']")), (of_nnx, ())):
        adapter: Any = adapter_of(make, WIDTH)
        assert adapter.unused(adapter.make(0), x, "") == unused


def test_parameters_are_those_of_the_seed() -> None:
    for make, name in ((linen, "['params']['query']['kernel']"), (Grouped, "['query']['kernel']")):
        adapter: Any = adapter_of(make, WIDTH)
        state = adapter.make(1)
        kernel = state.variables["params"]["query"]["kernel"] if make is linen else state.query.kernel[...]
        found = reading.assert_seeds(adapter)
        np.testing.assert_array_equal(found[name], kernel)
        assert len(found) == 8


def drawn_by_numpy(key: Any, shape: Any, dtype: Any = None) -> Any:
    return jax.numpy.asarray(np.random.default_rng(int(key[0])).standard_normal(shape), dtype)


@pytest.mark.parametrize(
    ("make", "compiled"),
    [(linen, True), (Grouped, True), (lambda: nn.SelfAttention(num_heads=3, kernel_init=drawn_by_numpy), False)],
    ids=["linen", "nnx", "by NumPy"],
)
def test_many_modules_are_initialised_as_one_is(make: Any, compiled: bool) -> None:
    """By one compiled initialiser, or one by one if its draws differ."""
    adapter: Any = adapter_of(make, WIDTH)
    for seed in (3, 4):
        own, found = adapter.parameters(adapter.make(seed)), adapter.initialised(seed)
        assert own.keys() == found.keys()
        for name in own:
            np.testing.assert_allclose(found[name], own[name], rtol=1e-5, atol=1e-6)
    assert (adapter._compiled_make is not None) == compiled


@pytest.fixture(scope="module", params=[(linen, None), (of_nnx, causal)], ids=["linen", "causal nnx"])
def found(request: pytest.FixtureRequest) -> Inspection:
    make, call = request.param
    return inspect(make, WIDTH, call, draws=16)


def test_inspection(found: Inspection, request: pytest.FixtureRequest) -> None:
    stds = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 1.0)
    mask = "causal" if "causal" in request.node.name else "none"
    found.require(query_law="truncated normal", num_heads=3, mask=mask, bias=True, blamed=False, **stds)
    with pytest.raises(AssertionError, match="W_Q"):
        found.require(query_law="uniform")


def test_each_draw_has_a_module(found: Inspection) -> None:
    subject = found.subject()
    reading.assert_a_module_per_draw(subject)
    arrays = subject.arrays(np.random.default_rng(0))
    for name, array in arrays.items():
        assert array.any() == ("kernel" in name), name  # biases of heads have an axis of their own
    assert len(arrays) == 8


def test_module_without_attention_is_refused() -> None:
    with pytest.raises(InputError, match="has no attention"):
        inspect(Mean, WIDTH)
