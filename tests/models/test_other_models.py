"""Whole models of flax and Keras: what is read off them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attncheck as ac
from tests.frameworks.test_taps import of_nnx

WIDTH, HEADS, LAYERS = 32, 2, 2
IDS = np.arange(24).reshape(2, 12)
X = np.random.default_rng(0).standard_normal((2, 12, WIDTH)).astype(np.float32)
MEMORY = np.random.default_rng(1).standard_normal((2, 7, WIDTH)).astype(np.float32)


def test_linen() -> None:
    """Cross-attention, to keys and values of another length, is described by its source."""
    pytest.importorskip("flax")
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any) -> Any:
            x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, ids: Any, memory: Any) -> Any:
            x = nn.Embed(50, WIDTH)(ids)
            for _ in range(LAYERS):
                x = Block()(x, nn.make_causal_mask(ids))
            x = x + nn.MultiHeadDotProductAttention(HEADS, name="other")(nn.LayerNorm()(x), memory)
            return nn.Dense(50, kernel_init=nn.initializers.zeros)(x)

    found = ac.inspect(Model, inputs=(IDS, MEMORY), draws=2)
    assert found.blamed == ()
    groups = {group.title: (group.source, group.inspection.forward.mask) for group in found.attention}
    assert groups == {"Block_*.MultiHeadDotProductAttention_0 (2)": ("", "causal"), "other": ("inputs_k", "none")}
    found.require("causal", parameters={"*.bias": "zeros", "*MultiHead*.kernel": "truncated normal(1/sqrt(fan_in))"})
    assert any("Dense_0.kernel: zeros: this initialiser does not draw the projection" in str(n) for n in found.notes)
    with pytest.raises(AssertionError, match=r"Dense_0\.kernel: .*not normal"):
        found.require(parameters={"Dense_0.kernel": "normal(0.5)"})


def test_nnx() -> None:
    block = of_nnx()
    nnx: Any = pytest.importorskip("flax.nnx")

    def model(rngs: Any) -> Any:
        return nnx.Sequential(block(WIDTH, rngs), nnx.Linear(8, WIDTH, rngs=rngs), block(WIDTH, rngs))

    found = ac.inspect(model, inputs=(X,), draws=2)
    unmeasured = "other properties were not examined (measured in PyTorch models only)"
    assert found.verdict.endswith(f"nothing wrong was found in attention and parameters; {unmeasured}")
    assert [group.title for group in found.attention] == ["layers.*.attention (2)"]
    assert found["layers.2.attention"].num_heads == 4
    found.require(parameters={"*.attention.*.kernel": "truncated normal(1/sqrt(fan_in))", "*.scale": "ones"})


def test_keras() -> None:
    keras = pytest.importorskip("keras")

    def build() -> Any:
        inputs, memory = keras.Input((None, WIDTH)), keras.Input((None, WIDTH))
        x = inputs
        for _ in range(LAYERS):
            x = keras.layers.LayerNormalization()(x + heads()(x, x, use_causal_mask=True))
        return keras.Model([inputs, memory], keras.layers.Dense(WIDTH)(heads(name="other")(x, memory)))

    def heads(**fields: Any) -> Any:
        return keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, **fields)

    found = ac.inspect(build, inputs=(X, MEMORY), call=lambda model, x, y: model([x, y]), draws=2)
    assert found.blamed == ()
    groups = {group.title: (group.source, group.inspection.forward.mask) for group in found.attention}
    assert groups == {"multi_head_attention_* (2)": ("", "causal"), "other": ("value", "none")}
    assert found.parameters["dense.kernel"].shape == (WIDTH, WIDTH)
    found.require(parameters={"*query_dense.kernel": "uniform(1/sqrt(32))", "*.bias": "zeros"})
