"""The conjectured limit: kernels and the law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck import AttentionLayer, AttentionStack, StackLaw
from attncheck._lib.arrays import FloatArray
from attncheck.layers.nonlinearity import Nonlinearity, clip, erf, identity, relu, tanh
from attncheck.simulators.linalg import lower_root
from attncheck.theory.stacks.kernels import image_kernels
from attncheck.theory.stacks.recursion import draw_normals, recur

# Two-sided level 1e-9 per comparison.
QUANTILE = 6.1


def covariances(count: int, size: int, scale: float) -> FloatArray:
    root = np.random.default_rng(0).standard_normal((count, size, size + 1)) * scale
    return root @ root.swapaxes(-1, -2)


@pytest.mark.parametrize("phi", [tanh(), clip(100.0), clip(1.0), relu(), erf(), identity()], ids=lambda phi: phi.name)
@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
def test_kernels_are_the_duals(phi: Nonlinearity, scale: float) -> None:
    given = covariances(3, 3, scale)
    kernels, error = image_kernels(phi, given)
    for gram, kernel in zip(given, kernels, strict=True):
        own = np.diagonal(gram)
        value, _ = phi.dual(own[:, None], own[None], gram)
        size = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
        assert np.max(np.abs(kernel - value) / size) <= error + 1e-12
    assert error < 1e-3


def test_error_of_kernels_is_no_more_than_it_must_be() -> None:
    """For tanh it grows with the variance, as the expansion predicts; an always large bound would be useless."""
    _, small = image_kernels(tanh(), covariances(50, 3, 0.3))
    _, large = image_kernels(tanh(), covariances(50, 3, 5.0))
    assert small < 1e-4 < large < 0.05


def test_kernels_of_singular_covariances() -> None:
    ones = np.ones((1, 2, 2))
    for phi in (tanh(), relu(), clip(1.0)):
        kernels, _ = image_kernels(phi, np.concatenate([ones, 0.0 * ones]))
        value, _ = phi.dual(1.0, 1.0, 1.0)
        np.testing.assert_allclose(kernels[0].diagonal(), float(value), rtol=1e-12)
        assert not kernels[1].any()


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
