"""Extremes, trends and groups: closed forms and edge cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.streams import stream
from attncheck.evidence.exchange import TIE, Extremes, Trend
from attncheck.evidence.groups import EqualVariances, WithinGroups
from attncheck.evidence.normal import Association
from attncheck.evidence.summaries import Events

FALSE_ALARM = 1e-7


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


# Of trends.


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


def test_a_scale_that_all_groups_share_is_none_of_theirs() -> None:
    squares, freedom = np.array([[90.0, 110.0, 95.0]]), np.full((1, 3), 100.0)
    ours, theirs = EqualVariances(3, 100).test(squares, freedom), EqualVariances(3, 100).test(7.0 * squares, freedom)
    assert theirs.p_value == pytest.approx(ours.p_value, rel=1e-9)
    assert theirs.effect == pytest.approx(ours.effect, rel=1e-12)


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


def test_rounding_makes_as_many_ties_as_there_are_sides_of_calls_and_of_all() -> None:
    sides = np.array([[1.0, 5.0], [1.0, 4.0], [0.5, 3.0], [0.4, 2.0]])
    outcome = Extremes().test(sides, np.array([2, 2]))
    expected = TIE * 2 * 3
    assert outcome.p_value == pytest.approx(-np.expm1(-expected), rel=1e-9)
    assert outcome.summary == Events(1, 4, expected / 4)
