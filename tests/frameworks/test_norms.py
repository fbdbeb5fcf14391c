"""torch's norms and blocks have the declared law, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.layers.inputs import Norm
from attncheck.layers.norm import normalised
from attncheck.simulators.collapsed import draw_stream

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

LAYER = ac.AttentionLayer(width=8, seq_len=3, num_heads=2, head_dim=4, activation="identity", query_std=1.5)


@pytest.mark.parametrize(("norm", "function"), [("layer", F.layer_norm), ("rms", F.rms_norm)])
def test_norms_are_those_of_torch(norm: Norm, function: Any) -> None:
    x = 3.0 + np.random.default_rng(0).standard_normal((4, 3, 8))
    expected = function(torch.tensor(x), (8,), eps=0.0).numpy()
    np.testing.assert_allclose(normalised(norm, x), expected, rtol=1e-12)


def encoder(stack: ac.AttentionStack, first: bool) -> list[Any]:
    sizes = stack.width, stack.num_heads, stack.mlp_ratio * stack.width
    fields: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "bias": False, "dtype": torch.float64}
    fields |= {"activation": stack.mlp, "norm_first": first}
    return [torch.nn.TransformerEncoderLayer(*sizes, **fields).eval() for _ in range(stack.depth)]


def redraw(block: Any, stack: ac.AttentionStack, rng: np.random.Generator) -> None:
    layer = stack.layer
    packed = np.repeat([layer.query_std, layer.key_std, layer.value_std], stack.width)[:, None]
    weights: list[tuple[Any, Any]] = [
        (block.self_attn.in_proj_weight, packed),
        (block.self_attn.out_proj.weight, layer.output_std),
        (block.linear1.weight, stack.mlp_std),
        (block.linear2.weight, stack.mlp_std),
    ]
    for weight, std in weights:
        weight.copy_(torch.tensor(std * weight.shape[1] ** -0.5 * rng.standard_normal(tuple(weight.shape))))


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_blocks_of_torch_have_the_law_of_the_stack(first: bool) -> None:
    before = ac.AttentionStack(layer=LAYER.replace(norm="layer"), depth=2, residual=True, mlp="gelu", mlp_ratio=2)
    after = ac.AttentionStack(layer=LAYER, depth=2, residual=True, post_norm="layer", mlp="gelu", mlp_ratio=2)
    stack, other = (before, after) if first else (after, before)
    size, rng = 1_500, np.random.default_rng(0)
    streams = draw_stream(LAYER, size, rng)
    outputs, blocks = [], encoder(stack, first)
    with torch.no_grad():
        for stream in streams:
            z = torch.tensor(stream)[None]
            for block in blocks:
                redraw(block, stack, rng)
                z = block(z)
            outputs.append(z[0].numpy())
    y = np.stack(outputs)

    def numbers(made: FloatArray) -> FloatArray:
        squares = (made[:, 0] * made[:, 1]).sum(axis=-1)
        return np.stack([made[:, -1, 0], made[:, 0, 0] * made[:, -1, 0], squares, (made[:, :, 0] ** 2).sum(axis=1)])

    right, wrong = (
        min(
            float(stats.ks_2samp(*pair, method="asymp").pvalue)
            for pair in zip(numbers(y), numbers(ac.simulate(each, 20_000, seed, coordinates=8).outputs), strict=True)
        )
        for seed, each in enumerate((stack, other))
    )
    assert right > 1e-7 > 1e-12 > wrong
