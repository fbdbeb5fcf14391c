"""Extremes, trends and groups: false-alarm rates and planned power."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.streams import stream
from attncheck.evidence.exchange import TIE, Extremes, Trend
from attncheck.evidence.groups import EqualVariances, WithinGroups
from attncheck.evidence.normal import Association
from attncheck.evidence.summaries import Events, NormalScore

LEVELS = (0.05, 0.01, 0.001)
FALSE_ALARM = 1e-7
REPLICATIONS = 4_000


def too_many(p_values: list[float]) -> list[float]:
    counts = {level: int(np.sum(np.array(p_values) < level)) for level in LEVELS}
    return [level for level, count in counts.items() if stats.binom.sf(count - 1, len(p_values), level) < FALSE_ALARM]


# Of ties.


def one_call(sides: list[list[float]]) -> tuple[float, float]:
    outcome = Extremes().test(np.array(sides), np.array([len(sides)]))
    return outcome.effect, outcome.p_value


def test_draws_that_meet_at_an_extreme_are_counted() -> None:
    assert one_call([[1.0, 2.0], [0.5, 1.0]]) == (0.0, 1.0)
    assert one_call([[2.0, 2.0], [2.0, 1.0]])[0] == 0.5
    assert one_call([[2.0, 2.0], [2.0, 2.0], [2.0, 2.0], [1.0, 1.0]])[0] == 1.0
    # Ties below the largest, and nothing on one side.
    assert one_call([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0]]) == (0.0, 1.0)


def test_calls_tie_within_and_with_each_other() -> None:
    column = np.array([3.0, 1.0, 2.0, 2.0, 3.0, 1.0])[:, None]

    def ties(*counts: int) -> float:
        return Extremes().test(column, np.array(counts)).effect * len(column)

    assert ties(6) == pytest.approx(1)
    assert ties(2, 2, 2) == pytest.approx(2)
    assert ties(1, 4, 1) == pytest.approx(1)


@pytest.mark.parametrize(("samples", "size"), [(30_000, 100), (300, 10_000)])
def test_ties_of_rounded_numbers_are_as_rare_as_stated(samples: int, size: int) -> None:
    """Steps of 2^-10, 2^13 times those of single precision: the chance grows with them, not with draws."""
    values = np.round(stream(0, "tests", "ties", size).standard_normal((samples, size)) * 2.0**10)
    tied = (values == values.max(axis=1, keepdims=True)).sum(axis=1) > 1
    assert tied.any()
    assert stats.binom.sf(int(tied.sum()) - 1, samples, TIE * 2.0**13) > FALSE_ALARM


@pytest.mark.parametrize("share", [0.002, 0.02])
def test_bounds_are_seen_as_planned(share: float) -> None:
    size = Extremes().size(share, 5e-4, 0.99)
    assert size is not None
    rng, seen = stream(0, "tests", "bounds", share), 0
    for _ in range(300):
        side = np.where(rng.random(size) < share, 4.0, rng.random(size))
        sides = np.stack([side, rng.random(size)], axis=1)
        seen += Extremes().test(sides, np.array([size])).p_value < 5e-4
    assert stats.binom.cdf(seen, 300, 0.99) > FALSE_ALARM
    assert Extremes().mde(size, 5e-4, 0.99) <= share


# Of trends.


@pytest.mark.sampled
@pytest.mark.parametrize("counts", [(2,) * 60, (5, 50, 3, 100)], ids=len)
def test_trends_keep_their_level(counts: tuple[int, ...]) -> None:
    rng = stream(0, "tests", "trend", *counts)
    draws = (rng.standard_t(3, sum(counts)) for _ in range(REPLICATIONS))
    assert too_many([Trend().test(values, np.array(counts)).p_value for values in draws]) == []


def test_every_order_of_a_call_has_the_stated_variance() -> None:
    """The mean of z² over all orders of two small calls is 1, with ties; a call of equal values adds nothing."""
    orders = itertools.product(itertools.permutations([1.0, 1.0, 9.0, 4.0]), itertools.permutations([2.0, 7.0, 3.0]))
    z = [Trend().test([*one, *other, *[5.0] * 30], [4, 3, 30]).effect * 34**0.5 for one, other in orders]
    assert np.mean(np.square(z)) == pytest.approx(1.0, rel=1e-9)


def test_trends_are_signed_and_add_up_over_calls() -> None:
    rising = np.arange(40.0)
    assert Trend().test(rising, [40]).effect > 0.9
    assert Trend().test(-rising, [40]).effect < -0.9
    # A jump between calls is no trend within them; across 200 it is some 10 standard deviations.
    jump = stream(0, "tests", "jump").random(200) + np.repeat([0.0, 100.0], 100)
    assert Trend().test(jump, [100, 100]).p_value > FALSE_ALARM
    assert Trend().test(jump, [200]).p_value < FALSE_ALARM


@pytest.mark.parametrize("counts", [(40,), (1,) * 40, (20,)], ids=str)
def test_where_nothing_can_rise_nothing_is_said(counts: tuple[int, ...]) -> None:
    outcome = Trend().test(np.zeros(sum(counts)), np.array(counts))
    assert (outcome.p_value, outcome.count) == (1.0, 0)
    assert Trend().power(0.9, 30, 1e-3) == 0.0


# Of groups.


@pytest.mark.parametrize(("groups", "dof"), [(2, 5.0), (4, 300.0), (16, 2.0)])
def test_scales_of_groups_keep_their_level(groups: int, dof: float) -> None:
    family, freedom = EqualVariances(groups, dof), np.full((1, groups), dof)
    squares = stream(0, "tests", "alike", groups).chisquare(dof, (REPLICATIONS, 1, groups))
    p_values = [family.test(each, freedom).p_value for each in squares]
    assert too_many(p_values) == []
    assert family.continuous == (groups == 2)
    if groups == 2:
        assert stats.kstest(p_values, "uniform").pvalue > FALSE_ALARM


def test_a_scale_that_all_groups_share_is_none_of_theirs() -> None:
    squares, freedom = np.array([[90.0, 110.0, 95.0]]), np.full((1, 3), 100.0)
    ours, theirs = EqualVariances(3, 100).test(squares, freedom), EqualVariances(3, 100).test(7.0 * squares, freedom)
    assert theirs.p_value == pytest.approx(ours.p_value, rel=1e-9)
    assert theirs.effect == pytest.approx(ours.effect, rel=1e-12)


@pytest.mark.parametrize("ratio", [1.21, 1 / 1.21])
def test_a_group_of_its_own_scale_is_seen_as_planned(ratio: float) -> None:
    family = EqualVariances(4, 16)
    size = family.size(ratio, 1e-3, 0.95)
    assert size is not None
    freedom = np.full((1, 4), 16.0 * size)
    squares = stream(0, "tests", "alike", ratio).chisquare(freedom[0], (1_000, 1, 4)) * [ratio, 1.0, 1.0, 1.0]
    outcomes = [family.test(each, freedom) for each in squares]
    seen = sum(outcome.p_value < 1e-3 for outcome in outcomes)
    assert stats.binom.cdf(seen, 1_000, 0.95) > FALSE_ALARM
    # Interval of the ratio to the others.
    held = sum(outcome.low <= ratio <= outcome.high for outcome in outcomes)
    assert stats.binom.cdf(held, 1_000, 0.99) > FALSE_ALARM


@pytest.mark.parametrize("squares", [[0.0, 5.0, 5.0], [0.0, 0.0, 5.0]])
def test_a_group_that_is_0_is_another_one(squares: list[float]) -> None:
    outcome = EqualVariances(3, 5).test(np.array([squares]), np.full((1, 3), 500.0))
    assert outcome.p_value < 1e-100
    assert 0.0 < outcome.low <= outcome.effect <= outcome.high


def test_groups_that_hold_nothing_say_nothing() -> None:
    assert EqualVariances(2, 5).test(np.zeros((1, 2)), np.full((1, 2), 5.0)).count == 0
    assert EqualVariances(2, 5).test(np.array([[0.0, 5.0]]), np.array([[0.0, 5.0]])).count == 0


def test_association_within_groups_is_that_of_centred_weights() -> None:
    rng = stream(0, "tests", "within")
    noise, weight, group = rng.standard_normal(300), rng.standard_normal(300), rng.integers(3, size=300)
    centred = weight - np.array([weight[group == each].mean() for each in range(3)])[group]
    found = WithinGroups().test(noise + group, weight - 5.0 * group, group)
    assert found.effect == pytest.approx(Association().test(noise, centred).effect, abs=1e-12)
    assert WithinGroups(7).size(0.1, 1e-3, 0.9) == Association(7).size(0.1, 1e-3, 0.9)


def test_a_trend_is_seen_with_the_planned_power() -> None:
    rng, family, correlation, level = np.random.default_rng(11), Trend(), 0.25, 0.01
    count = family.size(correlation, level, 0.8)
    assert count is not None
    place, power = np.linspace(-1.0, 1.0, count) * 3**0.5, family.power(correlation, count, level)
    noise = (1.0 - correlation**2) ** 0.5 * rng.standard_normal((600, count))
    outcomes = [family.test(correlation * place + row, [count]) for row in noise]
    seen = np.mean([outcome.p_value < level for outcome in outcomes])
    assert 0.8 <= power < 0.81
    assert abs(seen - power) < 0.08  # five standard errors
    assert np.mean([outcome.low < correlation < outcome.high for outcome in outcomes]) > 0.97
    # A score has the sign of its effect, which by chance is negative in 3e-4 of the draws; the mean is 3.4 ± 0.04.
    scores = [outcome.summary.z for outcome in outcomes if isinstance(outcome.summary, NormalScore)]
    assert [score > 0.0 for score in scores] == [outcome.effect > 0.0 for outcome in outcomes]
    assert abs(np.mean(scores) - 3.4) < 0.25


def test_rounding_makes_as_many_ties_as_there_are_sides_of_calls_and_of_all() -> None:
    sides = np.array([[1.0, 5.0], [1.0, 4.0], [0.5, 3.0], [0.4, 2.0]])
    outcome = Extremes().test(sides, np.array([2, 2]))
    expected = TIE * 2 * 3
    assert outcome.p_value == pytest.approx(-np.expm1(-expected), rel=1e-9)
    assert outcome.summary == Events(1, 4, expected / 4)
