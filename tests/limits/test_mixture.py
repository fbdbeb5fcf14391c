"""Scale mixtures, condensed to two points a cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck import limit
from attncheck.checks.laws import marginal_law
from attncheck.checks.marginals import last_position
from attncheck.layers.attention import AttentionLayer
from attncheck.theory.limits.mixture import ScaleMixture, condense


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("gap", "reach"), [(0.0, 1.0), (120.0, 1.0), (300.0, 1.0), (60.0, 200.0)])
def test_moments_are_kept_however_far_variances_lie_apart(gap: float, reach: float) -> None:
    rng = np.random.default_rng(0)
    variances = 10.0 ** -np.concatenate([rng.uniform(0.0, 2.0, 10_000), rng.uniform(gap, gap + reach, 10_000)])
    mixture = condense(variances, np.ones(len(variances)))
    assert len(mixture.variances) < 0.2 * len(variances)
    assert np.isfinite(mixture.variances).all()
    assert (mixture.variances >= variances.min()).all()
    for power in (1, 2, 3):
        assert mixture.weights @ mixture.variances**power == pytest.approx(np.mean(variances**power), rel=1e-12)


_MANY_HEADS = (
    {"attention_map": "sigmoid", "seq_len": 1},
    {"attention_map": "sigmoid", "seq_len": 1, "query_std": 8.0},
    {"attention_map": "sigmoid", "seq_len": 4, "query_std": 2.0, "activation": "tanh", "input_correlation": 0.5},
    {"attention_map": "relu", "seq_len": 4},
    {"attention_map": "linear", "seq_len": 4, "input_correlation": 0.5},
    {"attention_map": "linear", "seq_len": 4, "activation": "relu"},
    {"attention_map": "softmax", "seq_len": 4, "query_std": 3.0},
)


@pytest.mark.sampled
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fields", _MANY_HEADS, ids=str)
def test_sums_of_many_heads_have_the_transform_of_sums(fields: dict[str, Any]) -> None:
    """E e^{-cv} of a sum over heads is a power of one head's, and condensing preserves it at all scales c."""
    head = limit(AttentionLayer(**{"width": 64, "num_heads": 1, **fields})).mixture()
    for count in (1, 2, 7, 16, 64):
        whole = head.times(count)
        assert whole.mean() == pytest.approx(count * head.mean(), rel=1e-12)
        assert whole.variance() == pytest.approx(count * head.variance(), rel=1e-11)
        for scale in (0.1, 1.0, 10.0):
            c = scale / whole.mean()
            assert _transform(whole, c) == pytest.approx(_transform(head, c) ** count, rel=0.0, abs=3e-8)


def _transform(mixture: ScaleMixture, c: float) -> float:
    return mixture.atom + float(mixture.weights @ np.exp(-c * mixture.variances))


def test_the_law_of_a_layer_whose_variances_underflow_is_one() -> None:
    """Sigmoid weights of large negative scores: output variances span hundreds of orders of magnitude."""
    fields: dict[str, Any] = {"attention_map": "sigmoid", "mask": "causal", "activation": "identity"}
    layer = AttentionLayer(width=1, seq_len=6, num_heads=3, key_std=4.0, input_std=2.0, input_correlation=1.0, **fields)
    law = marginal_law(layer, last_position(layer))
    assert np.isfinite(law.mixture.variances).all()
    assert (law.mixture.variances > 0.0).all()
    assert 0.0 < law.error < 0.05
