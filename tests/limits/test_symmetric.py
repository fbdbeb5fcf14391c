"""What every law of outputs is by symmetry, whatever makes its tails."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate

from attncheck import AttentionLayer, AttentionStack, finite_width_law, limit
from attncheck.theory.limits.symmetric import SymmetricLaw

LAYER = AttentionLayer(width=16, seq_len=3, mask="causal")
LAWS = (
    limit(LAYER),
    limit(LAYER.replace(attention_map="relu", num_heads=1)),  # an atom at 0
    limit(AttentionStack(layer=LAYER, depth=2)),
    finite_width_law(LAYER, size=128),
    finite_width_law(LAYER.replace(attention_map="linear"), size=128),
    finite_width_law(LAYER.replace(attention_map="linear", score_scaling="1/n"), size=128),  # whose limit is 0
    finite_width_law(LAYER, weights="uniform"),
)
POINTS = np.array([0.0, 1e-3, 0.3, 1.0, 2.5, 6.0, np.inf])


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_both_sides_are_alike(law: SymmetricLaw, position: int) -> None:
    tail = law.sf(POINTS, position)
    np.testing.assert_allclose(law.cdf(-POINTS[1:], position), tail[1:], rtol=1e-14)
    np.testing.assert_allclose(law.cdf(POINTS, position) + tail, 1.0, rtol=1e-15)
    assert np.all(np.diff(tail) <= 0.0)
    assert tail[0] <= 0.5
    assert tail[-1] == 0.0


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_variance_is_that_of_the_tails(law: SymmetricLaw) -> None:
    """E[y²] = ∫ 4t P(y > t) dt, by a rule whose own error is far below what a law says of itself."""
    t = np.linspace(0.0, 30.0, 60_001) * np.sqrt(law.variance())
    assert integrate.trapezoid(4.0 * t * law.sf(t), t) == pytest.approx(law.variance(), rel=0.02)


def test_a_law_says_what_it_is_of() -> None:
    for law in LAWS:
        assert f"{float(np.sqrt(law.variance())):.4g}, excess kurtosis {law.excess_kurtosis():.3g}" in str(law)
    assert [str(law).split()[0] for law in LAWS] == ["limit", "limit", "limit", "law", "law", "law", "law"]
    assert [law for law in LAWS if "(conjecture)" in str(law)] == [LAWS[2]]
