"""Distances and rates: fits on synthetic distances, limits that are 0, and heads of fixed size."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import attncheck as ac
from attncheck.layers.draws import Draws
from attncheck.simulators.layers import draw_program
from attncheck.simulators.multipliers import DirectMultiplier
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.law import Distance
from attncheck.theory.rates.marginal import restored, vanishes
from attncheck.theory.rates.rate import fit


def _made(metric: str, exponent: float, curvature: float, noise: float, seed: int) -> list[Distance]:
    rng = np.random.default_rng(seed)
    made = []
    for width in (64, 128, 256, 512, 1024, 2048):
        true = 0.35 * width**exponent * math.exp(curvature / width)
        replicates = true * (1.0 + noise * math.sqrt(REPLICATES) * rng.standard_normal(REPLICATES))
        value, error = float(replicates.mean()), float(replicates.std(ddof=1)) / math.sqrt(REPLICATES)
        made.append(Distance(metric, value, ERRORS * error, value, ERRORS * error, float(width), 100))
    return made


def test_intervals_hold_the_order_as_often_as_they_say() -> None:
    held = sum(
        fitted.order.low <= -1.0 <= fitted.order.high
        for fitted in (fit("ks", _made("ks", -1.0, -2.0, 0.01, seed)) for seed in range(400))
    )
    # 99% of 400, or more if a misfit widens them: fewer than 386 has a chance of 2e-5.
    assert held >= 386


def test_narrow_widths_that_bend_too_much_do_not_move_the_order() -> None:
    """The bend of a divergence of scores, with a next term that no fit has: (1 + 20/n)^{-1} instead of exp(-20/n)."""
    rng = np.random.default_rng(0)
    orders = []
    for _ in range(50):
        made = []
        for each in _made("kl", -2.0, 0.0, 0.003, int(rng.integers(2**32))):
            bend = 1.0 / (1.0 + 20.0 / each.width)
            made.append(dataclasses.replace(each, value=each.value * bend, error=each.error * bend))
        orders.append(fit("kl", made).order)
    assert abs(np.mean([order.value for order in orders]) + 2.0) < 0.01
    assert sum(order.low <= -2.0 <= order.high for order in orders) >= 45


def test_distances_that_are_noise_have_no_order() -> None:
    with pytest.raises(ac.InputError, match="not significantly above 0"):
        fit("ks", _made("ks", -1.0, 0.0, 10.0, 0))


@pytest.mark.parametrize(
    ("metric", "order", "constant"), [("ks", -1.0, 0.346), ("w1", -1.0, 0.743), ("tv", -1.0, 1.10), ("kl", -2.0, 11.0)]
)
def test_outputs_fall_as_predicted(metric: str, order: float, constant: float) -> None:
    # The paper's clip at 100 is the identity, except with chance 1e-300.
    layer = ac.AttentionLayer(width=64, activation="identity")
    rate = ac.rate(layer, (64, 128, 256, 512), metric, size=None if metric == "ks" else 256)
    assert (rate.predicted, rate.widths) == (order, (64, 128, 256, 512))
    assert rate.order.low <= order <= rate.order.high
    assert abs(rate.order.value - order) < 0.1
    assert rate.constant.value == pytest.approx(constant, rel=0.05)
    assert rate.leading == pytest.approx(constant, rel=0.05)
    if metric == "ks":
        # Half-widths vary with the seed: five times those of the docstring still separate -1 from -1/2.
        assert {distance.draws for distance in rate.distances} == {512}
        assert rate.order.high - rate.order.low < 0.2
        assert rate.constant.high - rate.constant.low < 0.12 * rate.constant.value


def test_default_draws_are_more_where_the_expansion_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, asked = ac.AttentionLayer(width=8, seq_len=2, num_heads=1, attention_map="relu"), []

    def made(*given: object, width: int, size: int | None, **rest: object) -> Distance:
        asked.append(size)
        return Distance("ks", 0.35 / width, 1e-4, math.nan, math.nan, float(width), 100)

    monkeypatch.setattr("attncheck.theory.rates.rate.distance", made)
    ac.rate(layer, (8, 12, 16, 24))
    assert set(asked) == {None}
    assert ac.distance(layer).draws == 4096


# Limits that are 0 -------------------------------------------------------------------------------

LINEAR = ac.AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear", score_scaling="1/n")
RELU = LINEAR.replace(attention_map="relu", head_dim=4, num_heads=2, mask="causal")


def _drawn(layer: ac.AttentionLayer) -> Draws:
    return draw_program(layer, 50, 2, np.random.default_rng(3), DirectMultiplier)


@pytest.mark.parametrize(
    "layer",
    [LINEAR, RELU, LINEAR.replace(norm="layer"), LINEAR.replace(score_scaling="n^-0.75")],
    ids=lambda layer: layer.describe(),
)
def test_every_draw_and_the_law_are_the_theorems_times_a_factor(layer: ac.AttentionLayer) -> None:
    drawn, other, scale = _drawn(layer), _drawn(restored(layer)), layer.score_factor
    assert scale == layer.head_width ** (-0.25 if layer.score_scaling == "n^-0.75" else -0.5)
    np.testing.assert_allclose(drawn.outputs, scale * other.outputs, rtol=1e-12)
    np.testing.assert_allclose(drawn.scores, scale * other.scores, rtol=1e-12)
    law, wide = (ac.finite_width_law(each, size=128) for each in (layer, restored(layer)))
    assert law.sf(0.3, 1) == pytest.approx(float(wide.sf(0.3 / scale, 1)), rel=1e-9)
    assert law.excess_kurtosis(1) == pytest.approx(wide.excess_kurtosis(1), rel=1e-9)
    assert law.ppf(0.9, 1) == pytest.approx(scale * float(wide.ppf(0.9, 1)), rel=1e-9)
    points = np.array([-1.0, -0.1, 0.0, 0.1, 1.0])
    np.testing.assert_allclose(law.difference(points, 1), law.cdf(points, 1) - law.limit.cdf(points, 1), atol=1e-12)
    np.testing.assert_array_equal(law.density_difference(points, 1), law.pdf(points, 1))
    # Softmax is not homogeneous, so its limit is not 0.
    softmax = layer.replace(attention_map="softmax")
    drawn, other = _drawn(softmax), _drawn(restored(softmax))
    assert np.abs(drawn.outputs / other.outputs - scale).max() > 0.01
    assert not vanishes(softmax)


def test_one_position_has_closed_forms() -> None:
    """By moments of χ: the lengths of h and Wh to the third power, a key and a value, two normals."""
    n = 8

    def chi(power: float) -> float:
        gammas = math.lgamma((n + power) / 2) - math.lgamma(n / 2)
        return math.exp(gammas + 0.5 * power * math.log(2 / n))

    layer = LINEAR.replace(width=n, seq_len=1, activation="identity")
    distance = ac.distance(layer, "w1", size=2048)
    expected = n**-0.5 * (2 / math.pi) * chi(3) ** 2 * chi(1) ** 2
    assert distance.value == pytest.approx(expected, abs=1.75 * distance.error)
    assert distance.error < 0.05 * expected
    assert distance.leading == pytest.approx(n**-0.5 * 2 / math.pi, rel=1e-6)
    # A score of two positions: the inputs' lengths once for both, a key and a normal.
    layer = ac.AttentionLayer(width=n, seq_len=2, score_scaling="1/n", activation="identity")
    score = ac.distance(layer, "w1", of="scores", size=2048)
    expected = n**-0.5 * (2 / math.pi) ** 0.5 * chi(1) ** 3 * chi(2)
    assert score.value == pytest.approx(expected, abs=1.75 * score.error)


def test_other_powers_have_distances_but_no_rate_in_the_inverse_width() -> None:
    layer = ac.AttentionLayer(width=64, score_scaling="n^-0.75")
    assert math.isnan(ac.distance(layer, size=16).leading)
    with pytest.raises(
        ac.InputError, match=r"score_scaling='n\^-0.75': makes distances fall as another power than 1/n"
    ):
        ac.rate(layer)
    scores = ac.rate(layer, (64, 128, 256, 512), "w1", of="scores", size=64)
    assert scores.predicted == -0.25
    assert scores.order.value == pytest.approx(-0.25, abs=0.01)
    assert not math.isnan(ac.distance(layer.replace(score_scaling="n^-2"), size=64).leading)


# Heads of fixed size -----------------------------------------------------------------------------

LAYER = ac.AttentionLayer(width=64, head_dim=8, num_heads=1, activation="identity")


def test_what_falls_falls_as_one_over_n_and_the_gap_is_stated() -> None:
    rate = ac.rate(LAYER, (64, 128, 256, 512), size=256)
    assert rate.gap is not None
    assert rate.gap == ac.distance(LAYER, size=256, width=math.inf)
    gap = ac.distance(LAYER, size=512, width=math.inf)
    assert gap.value == pytest.approx(0.0195, abs=0.002)
    assert abs(gap.value - rate.gap.value) < gap.error + rate.gap.error
    assert rate.order.low <= -1.0 <= rate.order.high
    assert rate.order.high - rate.order.low < 0.2
    assert rate.leading == pytest.approx(0.266, rel=0.02)
    assert "plus a remaining distance" in str(rate)
    # The distance from the limit of large heads does not fall.
    wide = ac.distance(LAYER, width=10**4, size=256)
    assert wide.value == pytest.approx(gap.value, abs=wide.error + gap.error)
    # It is small where heads are large, and nothing without a head_dim.
    large = ac.distance(LAYER.replace(head_dim=64), "kl", width=math.inf, size=1024)
    assert large.value == pytest.approx(1.3e-4, rel=0.05)
    full = LAYER.replace(head_dim=None)
    assert ac.distance(full, size=64) == ac.distance(full, size=64, reference="infinite width")
