"""equinox layers are read correctly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck import InputError, inspect
from attncheck.frameworks.framework import adapter_of

from . import reading

eqx: Any = pytest.importorskip("equinox")
jax: Any = pytest.importorskip("jax")

WIDTH = 12
BIASED = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)


def layer(key: Any) -> Any:
    return eqx.nn.MultiheadAttention(3, WIDTH, qk_size=5, vo_size=4, key=key, **BIASED)


class Block(eqx.Module):
    inner: Any

    def __init__(self, key: Any) -> None:
        self.inner = layer(key)

    @eqx.filter_jit
    def __call__(self, x: Any) -> Any:
        return self.inner(x, x, x)


def causal(module: Any, x: Any) -> Any:
    mask = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
    return jax.vmap(lambda each: module(each, each, each, mask=mask))(x)


def own(module: Any) -> dict[str, Any]:
    found = {}
    for m, part in (("Q", module.query_proj), ("K", module.key_proj), ("V", module.value_proj)):
        found[m], found["b" + m] = part.weight.T.reshape(WIDTH, 3, -1), part.bias.reshape(3, -1)
    out = module.output_proj
    return found | {"O": out.weight.T.reshape(3, -1, WIDTH), "bO": out.bias}


@pytest.mark.parametrize(("make", "call"), [(layer, causal), (Block, None)], ids=["causal", "compiled"])
def test_equinox(make: Any, call: Any) -> None:
    adapter = adapter_of(make, WIDTH, call)
    state = adapter.make(3)
    if make is Block:
        state(np.zeros((1, WIDTH)))  # compiled before inspection
    found = reading.read(adapter, state, WIDTH)
    reading.assert_reads(found, **own(state.inner if make is Block else state))
    reading.assert_forward(adapter, state, found, causal=call is causal)


def test_parameters_are_those_of_the_seed() -> None:
    adapter = adapter_of(layer, WIDTH)
    state = adapter.make(1)
    found = reading.assert_seeds(adapter)
    np.testing.assert_array_equal(found[".query_proj.weight"], state.query_proj.weight)
    assert len(found) == 8


def test_inspection() -> None:
    found = inspect(lambda key: eqx.nn.MultiheadAttention(3, WIDTH, key=key), WIDTH, draws=16)
    stds = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 3**-0.5)
    found.require(query_law="uniform", num_heads=3, mask="none", bias=False, blamed=False, **stds)


def test_models_are_refused() -> None:
    with pytest.raises(
        InputError, match="make='equinox': is not a module of torch, flax, keras; return one, or pass w"
    ):
        inspect(layer, inputs=(np.ones((1, 2, WIDTH)),))
