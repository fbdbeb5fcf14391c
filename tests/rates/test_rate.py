"""Fits of rates, on synthetic distances and on layers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import attncheck as ac
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.law import Distance
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


def test_another_order_is_told_apart() -> None:
    for seed in range(20):
        fitted = fit("ks", _made("ks", -0.5, -2.0, 0.01, seed))
        assert fitted.order.low > -0.7
        assert abs(fitted.order.value + 0.5) < 0.2


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
