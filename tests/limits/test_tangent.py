"""The tangent kernel with infinitely many heads: by integration and by draws, and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, infinite_heads_kernel, infinite_heads_tangent
from attncheck.layers.attention_map import attention_weights, weight_slopes
from attncheck.layers.kernel import input_kernel, psd_root
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.tangent import mean_tangent

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
    "causal": {"mask": "causal", "query_std": 4.0},
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
def test_it_is_the_mean_over_scores_and_values(kind: str) -> None:
    """By draws of the scores of one head, and of a neuron's values."""
    layer, size = AttentionLayer(**{**BASE, **KINDS[kind]}).replace(num_heads=1, num_kv_heads=None), 60_000
    kernel, rng = input_kernel(layer.inputs).matrix, np.random.default_rng(11)
    scores = draw_limit(layer, size, 0, rng).scores[:, 0]
    values = layer.value_std * layer.output_std * rng.standard_normal((size, 3)) @ psd_root(kernel).T
    weights, slopes = attention_weights(layer, scores), weight_slopes(layer, scores, values)
    of_values = 2.0 * (layer.value_std * layer.output_std) ** 2 * weights @ kernel @ weights.swapaxes(-1, -2)
    of_scores = 2.0 * (layer.query_std * layer.key_std) ** 2 * kernel * (slopes @ kernel @ slopes.swapaxes(-1, -2))
    found, sample = infinite_heads_tangent(layer), of_values + of_scores
    allowed = stats.norm.isf(_LEVEL / 2.0) * sample.std(axis=0) / size**0.5 + found.error
    # Rounding error of a mean of many equal numbers.
    assert (np.abs(sample.mean(axis=0) - found.matrix) <= allowed + 1e-10).all()
    # Five percent off would show.
    assert (allowed < 0.05 * np.abs(found.matrix).max()).all() or kind in ("relu", "linear")


def test_scores_divided_by_n_leave_twice_the_kernel() -> None:
    layer = AttentionLayer(**BASE)
    divided = layer.replace(score_scaling="1/n")
    twice = 2.0 * infinite_heads_kernel(divided).matrix
    np.testing.assert_allclose(infinite_heads_tangent(divided).matrix, twice, rtol=1e-12)
    assert not np.allclose(infinite_heads_tangent(layer).matrix, 2.0 * infinite_heads_kernel(layer).matrix, rtol=0.05)


def test_linear_attention_has_closed_forms() -> None:
    """Both parts are 2 σ_Q²σ_K²σ_V²σ_O² K_ik Σ_jl K_jl²."""
    kernel = np.array([[2.0, 0.5], [0.5, 1.0]])
    layer = AttentionLayer(width=1, seq_len=2, num_heads=1, query_std=1.5, value_std=0.5, attention_map="linear")
    mean, _ = mean_tangent(layer, kernel, 0)
    np.testing.assert_allclose(mean, 4.0 * 1.5**2 * 0.5**2 * kernel * (kernel**2).sum())
