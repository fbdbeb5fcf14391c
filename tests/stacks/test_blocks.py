"""Encoder blocks: their limit, descriptions and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck import AttentionLayer, AttentionStack, limit, simulate
from attncheck.theory.stacks.recursion import recur
from tests.simulators.cases import BLOCKS, NORMED, PLACED, PRE_BLOCK

SIZE = 20_000


@pytest.mark.sampled
@pytest.mark.parametrize("stack", [*NORMED, *BLOCKS, PLACED], ids=AttentionStack.describe)
def test_wide_stacks_are_near_the_limit(stack: AttentionStack) -> None:
    """Mean Gram matrices are off by order 1/n; those without the norms by more."""
    stack = stack.replace(layer=stack.layer.replace(head_dim=None))
    limit = simulate(stack, SIZE, 1, "limit", coordinates=1)
    wide = simulate(stack.replace(layer=stack.layer.replace(width=512)), 2_000, 2, coordinates=8)
    for name in ("grams", "outputs"):
        one, other = (getattr(draws, name) for draws in (limit, wide))
        if name == "outputs":
            one, other = (each @ each.swapaxes(-1, -2) / each.shape[-1] for each in (one, other))
        error = np.sqrt(one.var(axis=0) / len(one) + other.var(axis=0) / len(other))
        assert (
            np.abs(one.mean(axis=0) - other.mean(axis=0)) < 6.0 * error + 0.01 * min(1.0, one.mean(axis=0).max())
        ).all()
    forgotten = stack.replace(layer=stack.layer.replace(norm=None), post_norm=None)
    if forgotten != stack:
        without = simulate(forgotten, SIZE, 1, "limit", coordinates=1)
        assert abs(without.grams.mean(axis=0) - wide.grams.mean(axis=0)).max() > 0.1


def test_the_recursion_of_a_block() -> None:
    """One position, with relu: half the variance, and σ⁴ of it."""
    layer = AttentionLayer(width=8, seq_len=1, num_heads=1, activation="identity")
    normals = np.zeros((1, 3, 1, 1, 1))
    critical = AttentionStack(layer=layer, depth=3, mlp="relu", mlp_std=2**0.25)
    assert recur(critical, normals).streams[0, :, 0, 0] == pytest.approx([1.0, 1.0, 1.0, 1.0])
    exploding = critical.replace(residual=True)
    assert recur(exploding, normals).streams[0, :, 0, 0] == pytest.approx([1.0, 4.0, 16.0, 64.0])
    before = AttentionStack(layer=layer.replace(norm="rms"), depth=3, residual=True, mlp="relu", mlp_std=2**0.25)
    assert recur(before, normals).streams[0, :, 0, 0] == pytest.approx([1.0, 3.0, 5.0, 7.0])
    after = AttentionStack(layer=layer, depth=3, residual=True, post_norm="rms", mlp="relu")
    assert recur(after, normals).streams[0, :, 0, 0] == pytest.approx([1.0] * 4)
    assert recur(after, normals).scales[0, :, :, 0] == pytest.approx(np.tile([2**0.5, 1.5**0.5], (3, 1)))


def test_descriptions_say_what_a_block_is() -> None:
    assert "residual mlp=gelu mlp_ratio=2 mlp_std=1.3 (conjecture)" in PRE_BLOCK.describe()
    matrices = {node.weight: None for node in PRE_BLOCK.expand().program.lines() if hasattr(node, "weight")}
    assert PRE_BLOCK.weight_entries == sum(np.prod(weight.shape(5)) for weight in matrices)


def test_one_block_is_a_conjecture_where_scores_feed_its_perceptron() -> None:
    one = AttentionStack(layer=PRE_BLOCK.layer, depth=1, mlp="relu")
    assert one.coverage().worst.statement.startswith("conjecture")
    assert one.describe().endswith("(conjecture)")
    assert "mlp=relu (conjecture)" in str(limit(one))
    assert "conjecture" not in one.replace(mlp=None).describe()
