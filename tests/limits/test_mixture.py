"""Scale mixtures, condensed to two points a cell."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck.checks.laws import tail_law
from attncheck.checks.marginals import last_position
from attncheck.layers.attention import AttentionLayer
from attncheck.theory.limit import limit
from attncheck.theory.limits.mixture import condense


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("gap", "reach"), [(0.0, 1.0), (50.0, 1.0), (120.0, 1.0), (300.0, 1.0), (60.0, 200.0)])
def test_moments_are_kept_however_far_variances_lie_apart(gap: float, reach: float) -> None:
    rng = np.random.default_rng(0)
    variances = 10.0 ** -np.concatenate([rng.uniform(0.0, 2.0, 10_000), rng.uniform(gap, gap + reach, 10_000)])
    mixture = condense(variances, np.ones(len(variances)))
    assert len(mixture.variances) < 0.2 * len(variances)
    assert np.isfinite(mixture.variances).all()
    assert (mixture.variances >= variances.min()).all()
    for power in (1, 2, 3):
        assert mixture.weights @ mixture.variances**power == pytest.approx(np.mean(variances**power), rel=1e-12)


@pytest.mark.filterwarnings("error")
def test_weights_that_underflow_in_products_are_left_out() -> None:
    mixture = condense(np.array([1.0, 2.0, 1e-20]), np.array([1.0, 1.0, 1e-310]))
    assert mixture.variances.tolist() == [1.0, 2.0]
    # Many heads add up to such weights: sigmoid attention whose scores are far below 0 in all of them at once.
    layer = AttentionLayer(
        width=3,
        seq_len=2,
        num_heads=16,
        attention_map="sigmoid",
        mask="causal",
        query_std=1.5,
        key_std=0.5,
        output_std=2.0,
        activation="erf",
        input_std=1.5,
    )
    assert np.isfinite(limit(layer).mixture(1).weights).all()


def test_the_law_of_a_layer_whose_variances_underflow_is_one() -> None:
    """Sigmoid weights of large negative scores: variances of outputs lie hundreds of orders of magnitude apart."""
    layer = AttentionLayer(
        width=1,
        seq_len=6,
        num_heads=3,
        attention_map="sigmoid",
        mask="causal",
        query_std=0.5,
        key_std=2.0,
        value_std=2.0,
        output_std=0.5,
        activation="identity",
        input_std=2.0,
        input_correlation=1.0,
    )
    law = tail_law(layer, last_position(layer))
    assert np.isfinite(law.mixture.variances).all()
    assert (law.mixture.variances > 0.0).all()
    assert 0.0 < law.error < 0.05
