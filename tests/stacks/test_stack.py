"""Stacks: descriptions, coverage by the paper, and the conjectured limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck import AttentionLayer, AttentionStack, StackLaw, limit
from attncheck._lib.arrays import FloatArray
from attncheck.layers.nonlinearity import Nonlinearity, clip, erf, identity, relu, tanh
from attncheck.layers.program.coverage import CoverageKind
from attncheck.simulators.linalg import lower_root
from attncheck.theory.stacks.recursion import draw_normals, image_kernels, recur
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


# Two-sided level 1e-9 per comparison.
QUANTILE = 6.1


def covariances(count: int, size: int, scale: float) -> FloatArray:
    root = np.random.default_rng(0).standard_normal((count, size, size + 1)) * scale
    return root @ root.swapaxes(-1, -2)


@pytest.mark.parametrize("phi", [tanh(), clip(100.0), clip(1.0), relu(), erf(), identity()], ids=lambda phi: phi.name)
@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
def test_kernels_are_the_duals(phi: Nonlinearity, scale: float) -> None:
    # Singular ones too.
    given = np.concatenate([covariances(3, 3, scale), np.full((1, 3, 3), scale**2), np.zeros((1, 3, 3))])
    kernels, error = image_kernels(phi, given)
    for gram, kernel in zip(given, kernels, strict=True):
        variances = np.diagonal(gram)
        value, _ = phi.dual(variances[:, None], variances[None], gram)
        size = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
        assert np.all(np.abs(kernel - value) <= (error + 1e-12) * size)
    assert error < 1e-3


def test_lower_root_is_a_root_whatever_the_rank() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 5, 3))
    x[:10, 2] = 0.0
    gram = x @ x.swapaxes(-1, -2)
    root = lower_root(gram)
    np.testing.assert_allclose(root @ root.swapaxes(-1, -2), gram, atol=1e-7)
    assert not np.triu(root, 1).any()
    full = gram[:, :3, :3] + np.eye(3)
    np.testing.assert_allclose(lower_root(full), np.linalg.cholesky(full), rtol=1e-10)


def test_one_layer_has_the_theorems_limit() -> None:
    for fields in ({"mask": "causal"}, {"attention_map": "sigmoid"}, {"norm": "layer", "query_std": 1.5}):
        layer = AttentionLayer(width=8, **fields)
        law, exact = StackLaw(AttentionStack(layer=layer, depth=1), draws=2**14), ac.limit(layer)
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


def test_linear_attention_of_one_position_is_a_product() -> None:
    """With s = 1, H = 1 and unit variances v_{l+1} = p² v_l, p = v_l N: v_2 = N², v_3 = (N² N')² N²."""
    layer = AttentionLayer(width=8, seq_len=1, num_heads=1, attention_map="linear", activation="identity")
    stack = AttentionStack(layer=layer, depth=2)
    normals = draw_normals(stack, 1000, np.random.default_rng(0))
    made = recur(stack, normals)
    first, second = normals[:, 0, 0, 0, 0], normals[:, 1, 0, 0, 0]
    np.testing.assert_allclose(made.streams[:, 1, 0, 0], first**2, rtol=1e-12)
    np.testing.assert_allclose(made.streams[:, 2, 0, 0], (first**2 * second) ** 2 * first**2, rtol=1e-12)
    residual = recur(stack.replace(residual=True), normals)
    once = 1.0 + first**2
    np.testing.assert_allclose(residual.streams[:, 2, 0, 0], once + (once * second) ** 2 * once, rtol=1e-12)


def test_scores_have_the_covariance_of_their_random_kernel() -> None:
    stack = AttentionStack(layer=AttentionLayer(width=8, seq_len=2, num_heads=1, query_std=1.5), depth=2)
    draws = ac.simulate(stack, 40_000, 0, "limit")
    kernel, scores = draws.grams[:, 1], draws.scores[:, 1, 0]
    for i, j, k, m in ((0, 0, 0, 0), (0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 1, 0)):
        excess = scores[:, i, j] * scores[:, k, m] - 1.5**2 * kernel[:, i, k] * kernel[:, j, m]
        assert abs(excess.mean()) < QUANTILE * excess.std() / 200
    # The kernel depends on the first scores, which averaging forgets.
    entropy = np.abs(draws.scores[:, 0, 0, 0, 0] - draws.scores[:, 0, 0, 0, 1])
    assert stats.spearmanr(entropy, kernel[:, 0, 0]).pvalue < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize("stack", [*NORMED, *BLOCKS, PLACED], ids=AttentionStack.describe)
def test_wide_stacks_are_near_the_limit(stack: AttentionStack) -> None:
    """Mean Gram matrices are off by order 1/n; those without the norms by more."""
    stack = stack.replace(layer=stack.layer.replace(head_dim=None))
    limit = ac.simulate(stack, 20_000, 1, "limit", coordinates=1)
    wide = ac.simulate(stack.replace(layer=stack.layer.replace(width=512)), 2_000, 2, coordinates=8)
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
        without = ac.simulate(forgotten, 20_000, 1, "limit", coordinates=1)
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
