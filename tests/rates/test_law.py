"""Laws at finite width against direct computations and closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import seed_sequence
from attncheck.checks.marginals import conditional_covariance
from attncheck.methods import simulate_chunks
from attncheck.theory.rates.drivers import Fluctuations
from attncheck.theory.rates.gap import standard_error
from tests.simulators.cases import PARTS

_DRAWS = 60_000
_POINTS = np.array([0.1, 0.4, 1.0, 2.0])
# Two-sided 1e-6 for each comparison.
_QUANTILE = 4.9


def _tails(layer: ac.AttentionLayer, position: int) -> tuple[FloatArray, FloatArray, float, float]:
    """Return P(y > t), E v and their standard errors, averaged over collapsed conditional variances."""
    variances = np.concatenate(
        [
            conditional_covariance(layer, draws)[:, position, position]
            for draws in simulate_chunks(layer, _DRAWS, 5_000, seed_sequence(0, "tests", layer.to_dict()))
        ]
    )
    variances = np.maximum(variances, 1e-300)
    values = special.ndtr(-_POINTS / np.sqrt(variances)[:, None])
    root = math.sqrt(_DRAWS)
    return values.mean(0), values.std(0) / root, float(variances.mean()), float(variances.std() / root)


# Most noise is the computed law's; at these sizes the limit is off by at least 34 of its standard errors, and the
# law at twice the width by 13, or 8 with heads of fixed size.
LAYERS = [
    ac.AttentionLayer(width=3),
    ac.AttentionLayer(
        width=16, head_dim=4, num_heads=4, num_kv_heads=2, mask="causal", seq_len=3, activation="identity"
    ),
    ac.AttentionLayer(width=16, num_heads=1, attention_map="linear", seq_len=2),
    ac.AttentionLayer(width=16, attention_map="relu", activation="relu", input_correlation=0.5),
    ac.AttentionLayer(width=8, score_scaling="1/n", input_correlation=1.0, seq_len=2),
    ac.AttentionLayer(
        width=16, seq_len=2, attention_map="sigmoid", activation="tanh", query_std=2.0, head_scaling=False
    ),
    ac.AttentionLayer(width=16, seq_len=3, activation="relu", query_std=1.5, norm="rms"),
    ac.AttentionLayer(width=16, seq_len=3, activation="relu", query_std=1.5, norm="layer", num_kv_heads=1),
    *(PARTS[name] for name in ("causal window", "softcap", "sink", "sink of one position", "own mask", "own map")),
]


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.describe())
def test_it_is_the_law_of_the_collapsed_reading(layer: ac.AttentionLayer) -> None:
    position = layer.seq_len - 1
    law = ac.finite_width_law(layer, size=1024 if layer.head_dim else 512)
    tail, tail_error, variance, variance_error = _tails(layer, position)
    spread = np.hypot(tail_error, np.asarray(law.cdf_error(_POINTS, position)) / 4.0)
    assert np.all(np.abs(law.sf(_POINTS, position) - tail) < _QUANTILE * spread)
    # The public error, without widths where it is uninformative.
    spread_of_variance = math.hypot(variance_error, standard_error(law.gap(position).deviation.moment(1)) / 4.0)
    assert abs(law.variance(position) - variance) < _QUANTILE * spread_of_variance


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
    assert law.difference(-0.4) == pytest.approx(-law.difference(0.4))
    assert law.cdf(0.0) == pytest.approx(0.5, abs=1e-12)
    grid = np.linspace(-12.0, 12.0, 4001)
    assert np.trapezoid(law.pdf(grid), grid) == pytest.approx(1.0, abs=1e-4)
    assert law.pdf_error(0.0) < 0.02 * law.pdf(0.0)
    assert law.sample(5, coordinates=2).shape == (5, 4, 2)


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


# `test_fixed_heads.py` tests that it stays.
def test_the_gap_at_a_fixed_head_dim_is_small_where_heads_are_large() -> None:
    layer = ac.AttentionLayer(width=64, num_heads=1, head_dim=64, activation="identity")
    gap = ac.distance(layer, "kl", width=math.inf, size=2048)
    assert gap.value == pytest.approx(1.3e-4, rel=0.05)


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
