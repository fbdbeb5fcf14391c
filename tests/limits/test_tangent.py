"""The tangent kernel at infinite width: its mean by integration and by draws, and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, InputError, TangentLimit, infinite_heads_kernel, infinite_heads_tangent
from attncheck.methods import tangent_kernel
from attncheck.theory.limits.heads import softmax_moments
from attncheck.theory.limits.one_row import _hermite

BASE: dict[str, Any] = {
    "width": 64,
    "seq_len": 3,
    "query_std": 1.3,
    "key_std": 0.8,
    "value_std": 1.2,
    "input_correlation": 0.3,
}
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "causal": {"mask": "causal"},
    "large scores": {"query_std": 4.0},
    "relu": {"attention_map": "relu", "mask": "causal"},
    "linear": {"attention_map": "linear", "mask": "causal"},
    "sigmoid": {"attention_map": "sigmoid", "activation": "relu"},
    "grouped": {"num_kv_heads": 1},
    "positions": {"position_std": 0.7},
}
_LEVEL = 1e-7
pytestmark = pytest.mark.usefixtures("fewer_points")


@pytest.mark.sampled
@pytest.mark.parametrize("kind", list(KINDS))
def test_mean_is_that_of_draws(kind: str) -> None:
    layer = AttentionLayer(**{**BASE, **KINDS[kind]})
    law, size = TangentLimit(layer), 60_000
    draws = tangent_kernel(layer, size, seed=11, method="limit", coordinates=2)
    quantile = stats.norm.isf(_LEVEL / 2.0)
    for sample, mean, error in (
        (draws.kernel[:, 0, 0], law.mean(), law.mean_error()),
        (draws.kernel[:, 0, 1], np.zeros((3, 3)), np.zeros((3, 3))),
        (draws.parts[:, 0, 0, 0] + draws.parts[:, 1, 0, 0], law.of_scores(), law.mean_error()),
    ):
        allowed = quantile * sample.std(axis=0) / size**0.5 + error
        # Rounding error of a mean of many equal numbers.
        assert (np.abs(sample.mean(axis=0) - mean) <= allowed + 1e-10).all()
        # Five percent off would show.
        assert (allowed < 0.05 * np.abs(law.mean()).max()).all() or kind in ("relu", "linear")


@pytest.mark.parametrize("score_scaling", ["1/sqrt(n)", "1/n"])
def test_scores_divided_by_n_leave_a_constant(score_scaling: Any) -> None:
    layer = AttentionLayer(**{**BASE, "score_scaling": score_scaling})
    draws = tangent_kernel(layer, 2_000, seed=0, method="limit", coordinates=2)
    constant = np.ptp(draws.kernel[:, 0, 0], axis=0).max() < 1e-12
    assert constant == (score_scaling == "1/n")
    assert bool(draws.kernel[:, 0, 1].any()) == (score_scaling == "1/sqrt(n)")
    if constant:
        np.testing.assert_allclose(draws.kernel[0, 0, 0], TangentLimit(layer).mean(), rtol=1e-12)


def test_the_mean_is_the_kernel_of_many_heads() -> None:
    """Random parts fall as 1/H, also between neurons."""
    layer = AttentionLayer(**{**BASE, "num_heads": 2})
    expected = infinite_heads_tangent(layer)
    np.testing.assert_allclose(TangentLimit(layer).mean(), expected.matrix)
    spreads = []
    for heads in (2, 16):
        theta = tangent_kernel(layer.replace(num_heads=heads), 4_000, seed=4, method="limit", coordinates=2).kernel
        spreads.append(theta[:, 0, :, 0, 0].var(axis=0))
    # Eight standard errors of a ratio of variances with kurtosis below 6.
    np.testing.assert_allclose(spreads[0] / spreads[1], 8.0, rtol=8.0 * (2.0 * 5.0 / 4_000) ** 0.5)


def test_linear_attention_has_closed_forms() -> None:
    """Both parts are 2 σ_Q²σ_K²σ_V²σ_O² K_ik Σ_jl K_jl²."""
    kernel = np.array([[2.0, 0.5], [0.5, 1.0]])
    found = infinite_heads_tangent(kernel=kernel, score_std=1.5, value_std=0.5, attention_map="linear")
    np.testing.assert_allclose(found.matrix, 4.0 * 1.5**2 * 0.5**2 * kernel * (kernel**2).sum())


@pytest.mark.sampled
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("std", [0.3, 1.0, 3.0])
def test_slopes_are_the_derivative_of_the_mean(causal: bool, std: float) -> None:
    """By points without controls: E tr(J K J'ᵀ K), by another integration."""
    kernel = np.array([[1.0, 0.6, 0.1], [0.6, 0.8, 0.3], [0.1, 0.3, 1.2]])
    means, errors = softmax_moments(kernel, std, causal, 0, (1,))[0]
    rng, size = np.random.default_rng(1), 200_000
    root = np.linalg.cholesky(kernel)
    scores = std * root @ rng.standard_normal((size, 3, 3)) @ root.T
    scores = np.where(np.tri(3, dtype=bool), scores, -np.inf) if causal else scores
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    slopes = (weights[..., None] * (np.eye(3) - weights[..., None, :])) @ kernel
    values = np.einsum("nrij,nqji->nrq", slopes, slopes)
    quantile = stats.norm.isf(_LEVEL / 2.0)
    assert (np.abs(values.mean(axis=0) - means) <= quantile * values.std(axis=0) / size**0.5 + errors + 1e-12).all()


@pytest.mark.parametrize("power", range(9))
def test_polynomials_are_interpolated_with_their_derivative(power: int) -> None:
    at = np.array([-1.0, -0.4, 0.0, 0.3, 1.0])
    places = np.array([-1.0, 0.0, 1.0])
    polynomial = np.polynomial.Polynomial.basis(power)
    given = np.stack([polynomial.deriv(n)(places) if n else polynomial(places) for n in range(3)], axis=1).ravel()
    for order in (0, 1):
        expected = polynomial.deriv(order)(at) if order else polynomial(at)
        np.testing.assert_allclose(_hermite(at, 3, order) @ given, expected, atol=1e-9)


def test_errors_hold_between_scramblings() -> None:
    layer = AttentionLayer(**{**BASE, "seq_len": 8, "position_std": 0.5})
    one, other = (infinite_heads_tangent(layer, scramble=seed) for seed in (0, 1))
    assert np.abs(one.matrix - other.matrix).max() <= one.error + other.error
    assert one.error < 1e-3 * one.matrix.max()
    assert (one.matrix > 2.0 * infinite_heads_kernel(layer).matrix).all()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="rotary_base"):
        TangentLimit(AttentionLayer(width=8, head_dim=4, rotary_base=1e4))
    with pytest.raises(InputError, match="is not an AttentionLayer"):
        TangentLimit("layer")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="head_scaling"):
        infinite_heads_tangent(AttentionLayer(width=8, head_scaling=False))
    with pytest.raises(InputError, match="is missing"):
        infinite_heads_tangent()
