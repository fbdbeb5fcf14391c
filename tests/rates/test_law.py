"""Laws at finite width against direct computations and closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.theory.rates.drivers import Fluctuations

_DRAWS = 60_000
# Two-sided 1e-6 for each comparison.
_QUANTILE = 4.9


def _one_position(width: int, attention_map: str) -> tuple[float, float]:
    """Return the variance and excess kurtosis with one position and head: v multiplies means of squared normals."""

    def moment(power: int) -> float:
        return math.prod(1.0 + 2.0 * k / width for k in range(power))

    if attention_map == "linear":
        # ‖h‖²/n and ‖Wh‖²/‖h‖² to the third power, a key, a value, and a squared normal.
        first, second = moment(3) ** 2, 3.0 * moment(6) ** 2 * moment(2) ** 2
    else:
        first, second = 1.0, moment(2) ** 3
    return first, 3.0 * (second / first**2 - 1.0)


@pytest.mark.parametrize(("attention_map", "widest"), [("softmax", 8), ("linear", 16)])
def test_errors_of_moments_cover_or_are_infinite(attention_map: Any, widest: int) -> None:
    fields: dict[str, Any] = {"attention_map": attention_map, "activation": "identity"}
    layer = ac.AttentionLayer(width=widest, seq_len=1, num_heads=1, **fields)
    variance, kurtosis = _one_position(widest, attention_map)
    for seed in range(2):
        law = ac.finite_width_law(layer, size=1024, seed=seed)
        # Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
        assert abs(law.variance() - variance) < 1.75 * law.variance_error() < math.inf
        assert abs(law.excess_kurtosis() - kurtosis) < 1.75 * law.excess_kurtosis_error() < math.inf
    for narrow in (layer.replace(width=1), layer.replace(width=widest - 1), layer.replace(width=64, head_dim=4)):
        law = ac.finite_width_law(narrow, size=256)
        assert law.variance_error() == law.excess_kurtosis_error() == math.inf
        assert np.isfinite(law.cdf_error(1.0))


def test_it_tells_the_limit_from_the_law_at_the_width() -> None:
    layer = ac.AttentionLayer(width=16)
    law, limit = ac.finite_width_law(layer, size=512), ac.limit(layer)
    assert abs(law.sf(0.4) - limit.sf(0.4)) > 10 * law.cdf_error(0.4)
    assert law.excess_kurtosis() > limit.excess_kurtosis() + law.excess_kurtosis_error() > 0
    assert law.difference(-0.4) == pytest.approx(-law.difference(0.4)) == pytest.approx(law.sf(0.4) - limit.sf(0.4))
    assert law.pdf_error(0.0) < 0.02 * law.pdf(0.0)


def _analytic(mean: float, spread: float, t: FloatArray) -> FloatArray:
    """Return the leading term of n(F_n - F_∞) for a variance 1 + ε with E ε = mean/n, Var ε = spread/n."""
    density = np.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)
    return np.asarray(density * (-0.5 * t * mean + (3 * t - t**3) * spread / 8))


def test_leading_constants_of_scores_are_the_analytic_ones() -> None:
    # E G_ii G_jj = 1 + 2/n (i ≠ j); relative variances add up over ‖h‖², both tokens and the key: 14/n.
    # `properties/theory/test_rates.py` tests a token's score with itself, 4/n and 18/n.
    width, t = 20_000, np.linspace(0.01, 4.0, 400)
    found = ac.distance(ac.AttentionLayer(width=width), of="scores", key=1, size=256)
    expected = np.abs(_analytic(2.0, 14.0, t)).max()
    assert width * found.leading == pytest.approx(expected, abs=width * found.leading_error + 1e-3)
    assert width * found.value == pytest.approx(expected, abs=width * found.error + 1e-3)
    assert width * found.error < 0.01 * expected
    # Positions share no length: if they did, the score's distance would be that of a layer without them.
    both = (ac.distance(ac.AttentionLayer(width=64, position_std=std), of="scores", size=256) for std in (1.5, 0.0))
    assert next(both).leading < 0.7 * next(both).leading


@pytest.mark.parametrize("width", [4, 64])
def test_leading_terms_are_of_first_order_at_any_width(width: int) -> None:
    layer = ac.AttentionLayer(width=width, seq_len=1, num_heads=1, activation="identity")
    found = ac.distance(layer, size=16)
    # Relative variances of 4/n of ‖Wh‖²/n and 2/n of the value.
    expected = np.abs(_analytic(0.0, 6.0, np.linspace(0.01, 4.0, 4000))).max()
    assert width * found.leading == pytest.approx(expected, abs=width * found.leading_error)
    assert found.leading_error < 0.01 * found.leading


def test_a_hundred_thousand_neurons_are_no_harder_than_a_thousand() -> None:
    # Errors of plain draws do not fall with the width: they would be thousands of times the bound.
    found = ac.distance(ac.AttentionLayer(width=10**5, activation="identity"), size=16)
    assert found.error < 0.15 * found.value
    assert found.value == pytest.approx(found.leading, abs=found.error + found.leading_error)


def test_one_seed_gives_the_same_digits_and_others_agree_within_errors() -> None:
    layer = ac.AttentionLayer(width=64, activation="identity")
    first, again, other = (ac.distance(layer, size=128, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.value != other.value
    assert abs(first.value - other.value) < first.error + other.error


@pytest.mark.parametrize("position_std", [0.0, 1.5])
def test_moments_of_the_drivers_are_those_of_their_draws(position_std: float) -> None:
    fields = {"seq_len": 3, "position_std": position_std, "input_correlation": 0.5}
    layer = ac.AttentionLayer(width=6, activation="relu", **fields)  # type: ignore[arg-type]  # numbers by name
    fluctuations = Fluctuations(layer, (0, 1, 2), shared=True, groups=2)
    rng = np.random.default_rng(0)
    draws = fluctuations.draw(_DRAWS, rng)
    mean = draws.gram.mean(axis=0)
    error = draws.gram.std(axis=0) / _DRAWS**0.5
    assert np.all(np.abs(mean - fluctuations.mean.gram[0]) < _QUANTILE * error)
    directions = fluctuations.gram_directions(rng)
    second = np.einsum("kij,kab->ijab", directions, directions)
    products = np.einsum("dij,dab->dijab", draws.gram, draws.gram)
    spread = products.std(axis=0) / _DRAWS**0.5
    # 4,096 Sobol points leave a percent.
    assert np.all(np.abs(products.mean(axis=0) - second) < _QUANTILE * spread + 0.01 * np.abs(second))
    moved, count = fluctuations.head_directions(8)
    total = count * sum((each**2).sum() for each in moved)
    assert total == pytest.approx((draws.keys**2).sum(axis=(1, 2, 3)).mean(), rel=0.05)
