"""Laws at finite width: against direct computations and closed forms, in their tails, and at atoms and kinks."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import special

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.theory.limits.mixture import ScaleMixture
from attncheck.theory.rates.deviation import REPLICATES, Cells, Deviation
from attncheck.theory.rates.drivers import Fluctuations
from attncheck.theory.rates.gap import Gap
from attncheck.theory.rates.marginal import FixedHeads, OutputEntry, ScoreEntry

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


def test_a_hundred_thousand_neurons_are_no_harder_than_a_thousand() -> None:
    # Errors of plain draws do not fall with the width: they would be thousands of times the bound.
    found = ac.distance(ac.AttentionLayer(width=10**5, activation="identity"), size=16)
    assert found.error < 0.15 * found.value
    assert found.value == pytest.approx(found.leading, abs=found.error + found.leading_error)


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


# Tails -------------------------------------------------------------------------------------------

SINGLE = ac.AttentionLayer(width=16, seq_len=1, num_heads=1, activation="identity")
# Spacing of the logarithm.
_SPACING = 1 / 200


def _tail(width: int, t: FloatArray) -> FloatArray:
    """Return P(y > t) with one position and head: v is a product of three χ²_n/n, ‖h‖², ‖Wh‖²/‖h‖² and the value's."""
    half = width / 2
    logs = _SPACING * np.arange(-30 / _SPACING, 6 / _SPACING)
    density = np.exp(half * (math.log(half) + logs - np.exp(logs)) - special.gammaln(half))
    product = np.convolve(np.convolve(density, density), density) * _SPACING**3
    roots = np.exp(0.5 * (3 * logs[0] + _SPACING * np.arange(len(product))))
    assert product.sum() == pytest.approx(1.0, abs=1e-9)
    return np.asarray(special.ndtr(-t[:, None] / roots) @ product)


def test_errors_of_tails_hold_or_are_infinite() -> None:
    t, far = np.array([0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]), 0
    for width, size, seeds in ((16, 256, 7), (16, 2048, 1), (64, 256, 7)):
        exact = _tail(width, t)
        for seed in range(seeds):
            law = ac.finite_width_law(SINGLE.replace(width=width), size=size, seed=seed)
            error = np.asarray(law.cdf_error(t))
            # Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
            assert np.all(np.abs(law.sf(t) - exact) < 1.75 * error)
            assert np.all(error[:2] < 0.05 * exact[:2])
            np.testing.assert_array_equal(law.cdf_error(-t), error)
            far += int(np.abs(law.sf(t) - exact)[1] > 1.9 / 4 * error[1])
    # Beyond 1.9 standard errors with a chance of 0.1: more than 6 of 15 with 4e-4. With half the errors, this or a
    # bound above would fail half the time.
    assert far <= 6


def test_errors_are_infinite_where_too_few_draws_reach() -> None:
    few, many = (ac.finite_width_law(SINGLE, size=size) for size in (64, 1024))
    assert few.cdf_error(8.0) == few.pdf_error(8.0) == many.cdf_error(8.0) == math.inf
    assert few.cdf_error(3.0) == math.inf > many.cdf_error(3.0)
    assert few.cdf_error([1.0, 8.0]).tolist() == [pytest.approx(few.cdf_error(1.0)), math.inf]
    # Beyond everything both laws are 1: nothing to estimate.
    assert few.cdf_error(math.inf) == few.pdf_error(-math.inf) == 0.0
    # With one neuron the density is infinite at 0.
    narrow = ac.finite_width_law(SINGLE.replace(width=1), size=1024)
    assert narrow.pdf_error(0.0) == math.inf > narrow.pdf_error(1.0)
    singular = ac.finite_width_law(ac.AttentionLayer(width=64, seq_len=1, num_heads=1, attention_map="linear"), size=16)
    assert singular.pdf(0.0) == singular.pdf_error(0.0) == math.inf


@pytest.mark.parametrize("law", [ac.finite_width_law(SINGLE, size=16), ac.limit(SINGLE)], ids=["width", "limit"])
def test_memory_does_not_grow_with_t(law: Any) -> None:
    law.cdf(0.0)
    tracemalloc.start()
    law.cdf(np.linspace(-2, 2, 10_000))
    law.pdf_error(np.linspace(-2, 2, 10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**26


# Atoms and kinks ---------------------------------------------------------------------------------

RELU = ac.AttentionLayer(width=64, attention_map="relu")
LONG = ac.AttentionLayer(width=8, seq_len=28)
# Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
_LONGER = 1.75


def test_an_atom_is_what_symmetry_makes_it() -> None:
    # At every width: each of the two scores is negative with chance 1/2, independently given all but the signs.
    law = ac.finite_width_law(RELU.replace(width=3, seq_len=2, num_heads=1), size=2048)
    assert abs(law.atom() - 0.25) < _LONGER * law.atom_error() < 0.02
    wide = ac.finite_width_law(RELU, size=64)
    assert abs(wide.atom() - wide.limit.atom()) < 0.005
    for each in (law, wide):
        assert each.sf(0.0) == pytest.approx((1 - each.atom()) / 2, abs=1e-12) == each.cdf(0.0) - each.atom()


def test_noise_never_takes_more_than_the_whole_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = Cells.over(1e-3, 1e3)
    measures = np.zeros((REPLICATES, len(cells.variances)))
    measures[:, -1] = np.linspace(-0.5, -0.3, REPLICATES)
    measures[:, 1000] = -measures[:, -1]
    gap = Gap(ScaleMixture(np.ones(1), np.array([0.8]), 0.2), Deviation(cells, measures, 16, lambda: measures))
    value, error = gap.distance("kl")
    assert value >= 0.0
    assert math.isfinite(error)
    law = ac.finite_width_law(RELU, size=16)
    monkeypatch.setattr(type(law), "gap", lambda self, position: gap)
    assert law.atom() == 0.0
    assert law.sf(0.0) == law.cdf(0.0) == 0.5
    other = dataclasses.replace(gap, deviation=Deviation(cells, -measures * 4, 16, lambda: measures))
    monkeypatch.setattr(type(law), "gap", lambda self, position: other)
    assert law.atom() == 1.0
    assert law.sf(0.0) == 0.0


def test_only_kinks_are_left_to_the_draws() -> None:
    assert OutputEntry(RELU, 2).kinked
    assert FixedHeads(OutputEntry(RELU.replace(head_dim=4), 2)).kinked
    # One visible position: its score has the sign of its normal.
    assert not OutputEntry(RELU.replace(mask="causal"), 0).kinked
    assert not ScoreEntry(RELU, 0, 1).kinked
    assert not any(OutputEntry(RELU.replace(attention_map=name), 0).kinked for name in ("softmax", "linear", "sigmoid"))


@pytest.mark.parametrize(
    ("layer", "known"), [(RELU, False), (RELU.replace(seq_len=1), True), (LONG, False)], ids=["relu", "one", "long"]
)
def test_the_first_term_is_told_where_it_is_known(layer: ac.AttentionLayer, known: bool) -> None:
    for metric in ("ks", "kl"):
        distance = ac.distance(layer, metric, size=16)
        assert 0.0 <= distance.value < math.inf
        assert math.isfinite(distance.error)
        assert math.isfinite(distance.leading) == math.isfinite(distance.leading_error) == known
        assert not known or distance.leading > 1e-4
