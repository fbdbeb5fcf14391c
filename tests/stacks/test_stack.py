"""Stacks: descriptions, coverage by the paper, and the conjectured limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, StackLaw, limit, simulate
from attncheck.layers.program.coverage import CoverageKind
from tests.simulators.cases import BLOCKS, NORMED, PLACED, PRE_BLOCK

LAYER = AttentionLayer(width=8, seq_len=2, num_heads=2, clip=3.0)


def test_layers_have_their_own_activations_and_the_templates_clip() -> None:
    stack = AttentionStack(layer=LAYER, depth=3, activations=["clip", "relu", "clip"])
    assert [(layer.activation, layer.clip) for layer in stack.layers] == [("clip", 3.0), ("relu", 100.0), ("clip", 3.0)]
    assert AttentionStack(layer=LAYER, depth=2).layers == (LAYER, LAYER)
    assert AttentionStack(layer=LAYER, depth=2) == AttentionStack(layer=LAYER, depth=2, activations="clip")
    assert hash(AttentionStack(layer=LAYER, depth=2)) == hash(AttentionStack(layer=LAYER, depth=2, activations="clip"))
    assert AttentionStack(layer=LAYER, depth=2, activations="relu").replace(depth=4).activations == ("relu",) * 4


def test_keys_differ() -> None:
    layer, names = LAYER.replace(head_dim=3, mask="causal"), ("relu", "tanh", "clip")
    deep = (AttentionStack(layer=layer, depth=k, activations=names[:k], residual=True) for k in (1, 3))
    stacks = (*deep, *NORMED, *BLOCKS)
    assert len({stack.key for stack in stacks}) == len(stacks)


def test_descriptions_say_conjecture_from_the_second_layer_on() -> None:
    assert AttentionStack(layer=LAYER, depth=1).describe() == "n=8 s=2 H=2 depth=1 clip=3.0"
    stack = AttentionStack(layer=LAYER, depth=2, activations=("relu", "tanh"), residual=True)
    assert stack.describe() == "n=8 s=2 H=2 depth=2 relu/tanh residual (conjecture)"
    assert "norm=rms depth=2" in NORMED[0].describe()
    assert "residual post_norm=rms" in NORMED[2].describe()
    assert "residual mlp=gelu mlp_ratio=2 mlp_std=1.3 (conjecture)" in PRE_BLOCK.describe()


def test_weight_entries_are_those_of_different_matrices() -> None:
    low = AttentionStack(layer=LAYER.replace(head_dim=3, num_kv_heads=1, input_correlation=0.5), depth=3)
    for stack in (AttentionStack(layer=LAYER, depth=2), low, PRE_BLOCK):
        weights = stack.expand().program.weights
        assert stack.weight_entries == sum(math.prod(weight.shape(stack.width)) for weight in weights)
        names = [weight.name for weight in weights]
        assert len(set(names)) == len(names)
        assert {"L1.Q1", "L2.Q1", "W1", "W2"} <= set(names)


@pytest.mark.parametrize(("depth", "residual"), [(1, True), (2, False), (4, True)])
def test_coverage_is_a_conjecture_from_the_second_layer_on(depth: int, residual: bool) -> None:
    stack = AttentionStack(layer=LAYER, depth=depth, residual=residual)
    found = stack.coverage()
    if depth == 1:
        assert found.proved
        assert found.lines[-1].statement == CoverageKind.OUTPUT
    else:
        assert found.worst.statement == CoverageKind.CONJECTURE
        assert not found.has_limit
        assert {line.statement for line in found.lines if line.name.startswith("L1.")} == (
            {CoverageKind.NETSOR, CoverageKind.SCORE, CoverageKind.OUTPUT}
        )
        assert {line.statement for line in found.lines if line.name.startswith("L2.y")} == {CoverageKind.CONJECTURE}


def test_one_block_is_a_conjecture_where_scores_feed_its_perceptron() -> None:
    one = AttentionStack(layer=PRE_BLOCK.layer, depth=1, mlp="relu")
    assert one.coverage().worst.statement.startswith("conjecture")
    assert one.describe().endswith("(conjecture)")
    assert "mlp=relu (conjecture)" in str(limit(one))
    assert "conjecture" not in one.replace(mlp=None).describe()


def test_one_layer_has_the_theorems_limit() -> None:
    for fields in ({"mask": "causal"}, {"attention_map": "sigmoid"}, {"norm": "layer", "query_std": 1.5}):
        layer = AttentionLayer(width=8, **fields)
        law, exact = StackLaw(AttentionStack(layer=layer, depth=1), draws=2**14), limit(layer)
        t = np.array([-2.0, -0.5, 0.3, 1.0])
        # Twice four standard errors of eight parts: a level below 1e-4 each.
        assert (np.abs(law.cdf(t, 2) - exact.cdf(t, 2)) < 2 * law.cdf_error(t, 2) + 1e-5).all()
        assert (np.abs(law.pdf(t, 2) - exact.pdf(t, 2)) < 2 * law.pdf_error(t, 2) + 1e-5).all()
        assert abs(law.variance(2) - exact.variance(2)) < 1.5 * law.variance_error(2) + 1e-9
        assert abs(law.excess_kurtosis(2) - exact.excess_kurtosis(2)) < 1.5 * law.excess_kurtosis_error(2) + 1e-9
        assert law.kernel_error < 1e-12
    post = StackLaw(AttentionStack(layer=AttentionLayer(width=8), depth=2, post_norm="rms"), draws=2**10)
    assert post.variance() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(post.cdf(t), stats.norm.cdf(t), atol=1e-9)


@pytest.mark.sampled
@pytest.mark.parametrize("stack", [*NORMED, *BLOCKS, PLACED], ids=AttentionStack.describe)
def test_wide_stacks_are_near_the_limit(stack: AttentionStack) -> None:
    """Mean Gram matrices are off by order 1/n; those without the norms by more."""
    stack = stack.replace(layer=stack.layer.replace(head_dim=None))
    limit = simulate(stack, 20_000, 1, "limit", coordinates=1)
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
        without = simulate(forgotten, 20_000, 1, "limit", coordinates=1)
        assert abs(without.grams.mean(axis=0) - wide.grams.mean(axis=0)).max() > 0.1
