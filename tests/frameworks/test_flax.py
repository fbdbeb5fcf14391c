"""flax layers are read correctly, wherever they call attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck import InputError, inspect
from attncheck.frameworks.flax import NNX, Linen, bind
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


class Written(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        q, k, v = (nn.DenseGeneral((3, 4), name=name, **BIASED)(x) for name in ("query", "key", "value"))
        heads = nn.dot_product_attention(q, value=v, key=k)
        return nn.DenseGeneral(WIDTH, axis=(-2, -1), name="out", **BIASED)(heads)


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


class Soft(Written):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        q, k, v = (nn.DenseGeneral((3, 4), name=name, **BIASED)(x) for name in ("query", "key", "value"))
        weights = nn.softmax(jax.numpy.einsum("blhd,bmhd->bhlm", q, k) / 2)
        heads = jax.numpy.einsum("bhlm,bmhd->blhd", weights, v)
        return nn.DenseGeneral(WIDTH, axis=(-2, -1), name="out", **BIASED)(heads)


def causal(module: Any, x: Any) -> Any:
    return module(x, mask=nn.make_causal_mask(x[..., 0]))


def linen_own(module: Any) -> dict[str, Any]:
    names = {"Q": "query", "K": "key", "V": "value", "O": "out"}
    return {
        start + m: module[name][kind] for m, name in names.items() for start, kind in (("", "kernel"), ("b", "bias"))
    }


def nnx_own(module: Any) -> dict[str, Any]:
    parts = {"Q": module.query, "K": module.key, "V": module.value, "O": module.out}
    kinds = (("", "kernel"), ("b", "bias"))
    return {start + m: getattr(part, kind)[...] for m, part in parts.items() for start, kind in kinds}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("make", "call", "inner"),
    [
        (lambda: nn.MultiHeadDotProductAttention(num_heads=3, **BIASED), None, None),
        (lambda: nn.MultiHeadDotProductAttention(num_heads=3, **BIASED), causal, None),
        (lambda: nn.jit(nn.SelfAttention)(num_heads=3, **BIASED), None, None),
        (Block, None, "inner"),
        (Written, None, None),
    ],
    ids=["layer", "causal", "compiled", "within", "written"],
)
def test_linen(make: Any, call: Any, inner: str | None) -> None:
    binding = Linen(make, WIDTH, call)
    state = binding.init(3)
    found = reading.read(binding, state, WIDTH)
    reading.assert_reads(found, **linen_own(state["params"][inner] if inner else state["params"]))
    reading.assert_forward(binding, state, found, causal=call is causal)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("make", "call", "is_causal"),
    [
        (lambda rngs: nnx.MultiHeadAttention(3, WIDTH, rngs=rngs, **BIASED), None, False),
        (lambda rngs: nnx.MultiHeadAttention(3, WIDTH, rngs=rngs, decode=False, **BIASED), causal, True),
        (Grouped, None, True),
    ],
    ids=["layer", "causal", "groups"],
)
def test_nnx(make: Any, call: Any, is_causal: bool) -> None:
    binding = NNX(make, WIDTH, call)
    state = binding.init(3)
    state(np.zeros((1, 1, WIDTH)), **({} if make is Grouped else {"decode": False}))  # compiled before inspection
    found = reading.read(binding, state, WIDTH)
    reading.assert_reads(found, **nnx_own(state))
    reading.assert_forward(binding, state, found, causal=is_causal)


def test_seeds_reach_the_initialiser() -> None:
    for binding in (
        Linen(lambda: nn.SelfAttention(num_heads=3), WIDTH),
        NNX(lambda rngs: nnx.MultiHeadAttention(3, WIDTH, rngs=rngs), WIDTH),
    ):
        first, again, other = (reading.read(binding, binding.init(seed), WIDTH)["Q"] for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).min() > 0


def test_module_of_nnx_stays_as_it_was() -> None:
    binding = NNX(
        lambda rngs: nnx.MultiHeadAttention(3, WIDTH, dropout_rate=0.5, rngs=rngs),
        WIDTH,
        lambda module, x: module(x, decode=False, deterministic=False),
    )
    state = binding.init(0)
    attention, before = state.attention_fn, jax.tree.leaves(nnx.state(state, nnx.RngCount))
    x = np.random.default_rng(0).standard_normal((1, 4, WIDTH))
    reading.run(binding, state, x)
    assert state.attention_fn is attention
    assert before == jax.tree.leaves(nnx.state(state, nnx.RngCount))
    binding._call(state, jax.numpy.asarray(x))
    assert before != jax.tree.leaves(nnx.state(state, nnx.RngCount))


def test_failure_of_the_core_comes_out() -> None:
    binding = Linen(Written, WIDTH)
    state = binding.init(0)

    def fail(core: Any) -> None:
        raise KeyError("of the core")

    with pytest.raises(KeyError, match="of the core"):
        binding.run(state, np.zeros((1, 2, WIDTH)), CoreTrace(fail))


class Idle(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        nn.Dense(4, name="idle")(x)
        return nn.MultiHeadDotProductAttention(num_heads=3, name="used")(x)


def test_parameters_that_are_never_used() -> None:
    binding = bind(Idle, WIDTH)
    x = np.ones((1, 2, WIDTH))
    assert binding.unused(binding.init(0), x, "") == ("['params']['idle']['bias']", "['params']['idle']['kernel']")
    binding = bind(lambda rngs: nnx.MultiHeadAttention(3, WIDTH, decode=False, rngs=rngs), WIDTH)
    assert binding.unused(binding.init(0), x, "") == ()
    (wrong,) = inspect(Idle, WIDTH, draws=2).blamed
    assert (
        wrong
        == "['params']['idle']['bias'] and ['params']['idle']['kernel']: never used, the outputs do not depend on them"
    )


def test_parameters() -> None:
    binding = bind(lambda: nn.MultiHeadDotProductAttention(num_heads=3), WIDTH)
    state = binding.init(0)
    found = binding.parameters(state)
    np.testing.assert_array_equal(found["['params']['query']['kernel']"], state["params"]["query"]["kernel"])
    assert len(found) == 8
    binding = bind(Grouped, WIDTH)
    module = binding.init(0)
    found = binding.parameters(module)
    np.testing.assert_array_equal(found["['query']['kernel']"], module.query.kernel[...])
    assert len(found) == 8


def drawn_by_numpy(key: Any, shape: Any, dtype: Any = None) -> Any:
    return jax.numpy.asarray(np.random.default_rng(int(key[0])).standard_normal(shape), dtype)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("make", "compiled"),
    [
        (lambda: nn.SelfAttention(num_heads=3), True),
        (lambda rngs: nnx.MultiHeadAttention(3, WIDTH, rngs=rngs), True),
        (Grouped, True),
        (lambda: nn.SelfAttention(num_heads=3, kernel_init=drawn_by_numpy), False),
    ],
)
def test_many_modules_are_initialised_as_one_is(make: Any, compiled: bool) -> None:
    """By one compiled initialiser, or one by one if its draws differ."""
    binding = bind(make, WIDTH)
    for seed in (3, 4):
        own, found = binding.parameters(binding.init(seed)), binding.initialised(seed)
        assert own.keys() == found.keys()
        for name in own:
            np.testing.assert_allclose(found[name], own[name], rtol=1e-5, atol=1e-6)
    assert (binding._compiled_init is not None) == compiled


@pytest.mark.parametrize(("dtype", "roundoff"), [("float32", 2.0**-24), ("bfloat16", 2.0**-8)])
def test_precision_is_that_of_attention(dtype: str, roundoff: float) -> None:
    for binding in (
        Linen(lambda: nn.MultiHeadDotProductAttention(num_heads=3, dtype=dtype), WIDTH),
        NNX(lambda rngs: nnx.MultiHeadAttention(3, WIDTH, dtype=dtype, rngs=rngs), WIDTH),
    ):
        y = reading.run(binding, binding.init(0), np.ones((13, 1, WIDTH)))[0]
        assert np.isfinite(y).all()
        assert binding.precision == roundoff


@pytest.mark.parametrize(
    ("make", "call", "mask"),
    [
        (lambda: nn.MultiHeadDotProductAttention(num_heads=3), None, "none"),
        (lambda rngs: nnx.MultiHeadAttention(3, 48, decode=False, rngs=rngs), causal, "causal"),
    ],
    ids=["linen", "nnx"],
)
def test_inspection(make: Any, call: Any, mask: str) -> None:
    found = inspect(make, 48, call)
    stds = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 1.0)
    found.require(query_law="truncated normal", num_heads=3, mask=mask, bias=False, blamed=False, **stds)
    with pytest.raises(AssertionError, match="W_Q"):
        found.require(query_law="uniform")


def test_inspection_of_a_softmax_that_is_written_by_hand() -> None:
    found = inspect(Soft, WIDTH)
    found.require(num_heads=3, mask="none", map="softmax")
    found.require(query_std=1.0, key_std=1.0)


def test_biases_of_heads_on_an_axis_of_their_own_are_set_to_zero() -> None:
    found = inspect(lambda: nn.MultiHeadDotProductAttention(num_heads=3, bias_init=nn.initializers.normal()), 48)
    arrays = found.subject().arrays(np.random.default_rng(0))
    for name, array in arrays.items():
        assert array.any() == ("kernel" in name), name
    assert len(arrays) == 8


def test_module_without_attention_is_refused() -> None:
    with pytest.raises(InputError, match="has no attention"):
        inspect(Mean, WIDTH)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.MultiHeadDotProductAttention(num_heads=3),
        lambda rngs: nnx.MultiHeadAttention(3, WIDTH, rngs=rngs, decode=False),
    ],
    ids=["linen", "nnx"],
)
def test_modules_run_at_once_as_they_do_one_by_one(make: Any) -> None:
    reading.assert_at_once(inspect(make, width=WIDTH).subject())
