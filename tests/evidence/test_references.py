"""Families on given data, row by row: outcomes and power from SciPy or by hand."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.streams import stream
from attncheck.evidence.exchange import TIE, Calls, Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count, Family, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import EqualVariances, LargestAssociation, WithinGroups
from attncheck.evidence.normal import Order

FALSE_ALARM = 1e-7
Row = tuple[Family, tuple[Any, ...], dict[str, Any]]


def row(family: Family, *data: Any, rel: float = 1e-9, **fields: Any) -> Row:
    """Return a family, its data and the fields of the outcome."""
    return family, data, {name: pytest.approx(value, rel=rel, abs=1e-12) for name, value in fields.items()}


def scales() -> Iterator[Row]:
    for ratio in (0.5, 0.97, 1.0, 1.2, 3.0):
        total, law = 300.0 * ratio, stats.chi2(300)
        both = min(1.0, 2 * min(law.cdf(total), law.sf(total)))
        ends = {"low": total / law.isf(0.005), "high": total / law.ppf(0.005)}
        yield row(Scale(3), np.full(100, total / 100), p_value=both, effect=ratio, count=300, null_effect=1.0, **ends)
    huge = 1e9 + 4.0 * math.sqrt(2e9)
    yield row(Scale(1e9), [huge], rel=0.01, p_value=2 * stats.norm.sf(4.0))
    yield row(Scale(1), [3.0, 0.0], [2.0, 0.0], **fields_of(Scale(1).test([3.0], [2.0])))
    yield row(Scale(1), [1.0], count=1)


def fields_of(outcome: Outcome) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in ("p_value", "effect", "low", "high", "count", "null_effect")}


def normal_means() -> Iterator[Row]:
    """Intervals have the larger of the known and the observed spread."""
    weight, quantile = np.array([0.2, -3.0, 0.7]), stats.norm.isf(0.005)
    for noise in ([0.1, -0.2, 0.3], [3.0, -4.0, 50.0], [0.9, -0.8, 1.1]):
        terms = np.array(noise) * weight / np.linalg.norm(weight)
        effect, spread = terms.sum() / math.sqrt(3), math.sqrt(3) * max(terms.std(), 1.0 / math.sqrt(3))
        half = quantile * spread / math.sqrt(3)
        yield row(Association(), noise, weight, effect=effect, low=effect - half, high=effect + half, null_effect=0.0)
    yield row(Association(), [1.0, 2.0, 30.0], [1.0, 1.0, 0.0], count=2, effect=1.5)
    # √3 (2u - 1): a grid spreads less than the uniform law, the two ends √3.
    for values, spread in (((np.arange(600) + 0.5) / 600, 1.0), (np.arange(600) % 2, 3**0.5)):
        half = quantile * spread / math.sqrt(600)
        yield row(Smooth(1), values, low=-half, high=half, null_effect=0.0)
    rng = stream(0, "tests", "within")
    ours, theirs, group = rng.standard_normal(300), rng.standard_normal(300), rng.integers(3, size=300)
    centred = theirs - np.array([theirs[group == k].mean() for k in range(3)])[group]
    yield row(
        WithinGroups(), ours + group, theirs - 5.0 * group, group, effect=Association().test(ours, centred).effect
    )


def orders() -> Iterator[Row]:
    """The next order, 3/n, is taken off: a tenth of it is left."""
    widths = np.array([32.0, 128.0, 512.0])
    means = -0.5 * np.log(widths) + np.log1p(3.0 / widths)
    error = abs(np.diff(means)[1] / np.log(4.0) + 0.5)
    yield row(Order(-0.5), np.stack([means, means + 1e-12]), widths, rel=0.2 * error, effect=-0.5)


def distances() -> Iterator[Row]:
    for count in (1, 7, 300):
        values = stream(0, "tests", "uniform", count).random(count) ** 1.3
        reference = stats.kstest(values, "uniform")
        yield row(Uniform(), values, p_value=reference.pvalue, effect=reference.statistic, at_most=False)
    values = 0.9 * (np.arange(400) + 0.5) / 400
    shifted = stats.kstwo.sf(Uniform().test(values).effect - 0.05, 400)
    yield row(Uniform(0.05), values, p_value=shifted, null_effect=0.05, at_most=True)
    yield row(Uniform(0.2), values, p_value=1.0)
    yield row(Uniform(), [1.0 + 1e-12, -1e-12, 0.5], effect=1 / 3)  # rounding outside the unit interval
    # scipy.stats.kstwo.sf(1e-4, 65_000) overflows to 0.
    for count, beyond in itertools.product((20, 4_000, 65_000, 500_000), (0.0, 0.05, 0.15)):
        shifts = np.clip((np.arange(count) + 0.5) / count + 0.004 + beyond / math.sqrt(count), 0.0, 1.0)
        yield row(Uniform(0.004 + 0.5 / count), shifts, p_value=1.0)
    rng = stream(5, "two samples")
    ours, theirs = rng.standard_normal((30, 5)), rng.standard_normal((40, 20)) + 0.5
    effect = stats.ks_2samp(ours.ravel(), theirs.ravel()).statistic
    # P(sup |F_n - F| > h) ≤ 2 exp(-2nh²), 0.005 for each of the two.
    half = sum(math.sqrt(math.log(2.0 / 0.005) / (2.0 * count)) for count in (150, 800))
    ends = {"low": max(0.0, effect - half), "high": effect + half}
    yield row(TwoSample(), ours, theirs, effect=effect, null_effect=0.0, count=150, **ends)
    yield row(TwoSample(unit=1.0), np.zeros(300), rng.uniform(-1e-6, 1e-6, 900), effect=0.0)
    for value in (0.1, -3.7e-9, 2.5e12):  # numbers that rounding made of one are one
        exact, rounded = np.full(300, value), np.full(900, float(np.float32(value)))
        normal = stats.norm.ppf((np.arange(200) + 0.5) / 200) * value
        yield row(TwoSample(), exact, rounded, effect=0.0)
        yield row(TwoSample(), exact, rounded * (1.0 + 1e-5), effect=1.0)
        yield row(TwoSample(), exact, rounded * (1.0 - 1e-5), effect=1.0)
        # An atom beside a continuous law, and effects of at most 0.2.
        yield row(TwoSample(), *(np.concatenate([atom, normal]) for atom in (exact, rounded)), effect=0.1, rel=1.0)


def counts() -> Iterator[Row]:
    for events in (0, 3, 17, 40):
        more, fewer = (stats.binomtest(events, 40, 0.2, alternative=side) for side in ("greater", "less"))
        interval = stats.binomtest(events, 40, 0.2).proportion_ci(0.99, "exact")
        yield row(Count(0.2), events, 40, p_value=more.pvalue, low=interval.low, high=interval.high, at_most=True)
        both = min(1.0, 2 * min(fewer.pvalue, more.pvalue))
        yield row(Count(0.2, tail="two-sided"), events, 40, p_value=both, at_most=False)
    yield row(Count(0.0), 0, 10, at_most=False)
    marks = np.arange(1_000, dtype=np.uint64)
    yield row(Repeats(), marks, p_value=1.0)
    yield row(Repeats(), np.append(marks[:-1], marks[:1]), p_value=0.0, effect=0.001)


def exchanges() -> Iterator[Row]:
    yield row(Extremes(), np.array([[1.0, 2.0], [0.5, 1.0]]), np.array([2]), effect=0.0, p_value=1.0)
    # Ties below the largest, and nothing on one side.
    yield row(Extremes(), np.array([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0]]), np.array([3]), effect=0.0, p_value=1.0)
    yield row(Extremes(), np.array([[2.0, 2.0], [2.0, 1.0]]), np.array([2]), effect=0.5)
    yield row(Extremes(), np.array([[2.0, 2.0]] * 3 + [[1.0, 1.0]]), np.array([4]), effect=1.0)
    column = np.array([3.0, 1.0, 2.0, 2.0, 3.0, 1.0])[:, None]
    for calls, tied in (([6], 1), ([2, 2, 2], 2), ([1, 4, 1], 1)):  # within and with each other
        yield row(Extremes(), column, np.array(calls), effect=tied / 6)
    sides = np.array([[1.0, 5.0], [1.0, 4.0], [0.5, 3.0], [0.4, 2.0]])
    yield row(Extremes(), sides, np.array([2, 2]), p_value=-np.expm1(-TIE * 2 * 3))
    # A group that is 0, and a scale that all groups share.
    squares, freedom = np.array([[90.0, 110.0, 95.0]]), np.full((1, 3), 100.0)
    fields = fields_of(EqualVariances(3, 100).test(squares, freedom))
    yield row(EqualVariances(3, 100), 7.0 * squares, freedom, **fields)
    for zeros in ([0.0, 5.0, 5.0], [0.0, 0.0, 5.0]):
        yield row(EqualVariances(3, 5), np.array([zeros]), np.full((1, 3), 500.0), p_value=0.0)


def uninformative() -> Iterator[Row]:
    """Data that say nothing are no evidence."""
    empty = functools.partial(row, p_value=1.0, count=0)
    yield empty(Association(), np.ones(5), np.zeros(5), effect=0.0, low=-1.0, high=1.0, null_effect=0.0)
    yield empty(LargestAssociation(columns=2), np.ones((3, 2)), np.zeros((3, 2)))
    for values, calls in ((np.arange(7.0), [7]), (np.arange(7.0), [1] * 7), (np.full(7, 2.5), [3, 4])):
        yield empty(Calls(2), values, calls, effect=0.0, low=0.0, high=1.0)
    for lengths in ((40,), (1,) * 40, (20,)):
        yield empty(Trend(), np.zeros(sum(lengths)), np.array(lengths))
    yield empty(EqualVariances(2, 5), np.zeros((1, 2)), np.full((1, 2), 5.0))
    yield empty(EqualVariances(2, 5), np.array([[0.0, 5.0]]), np.array([[0.0, 5.0]]))


ROWS = (*scales(), *normal_means(), *orders(), *distances(), *counts(), *exchanges(), *uninformative())


@pytest.mark.parametrize(("family", "data", "fields"), ROWS)
def test_outcomes_agree_with_references(family: Family, data: tuple[Any, ...], fields: dict[str, Any]) -> None:
    outcome = family.test(*data)
    assert {name: getattr(outcome, name) for name in fields} == fields
    assert outcome.low <= outcome.effect <= outcome.high


def powers() -> Iterator[tuple[Family, float, int, float, float]]:
    """Yield family, alternative, size, level and power."""
    for calls, share in itertools.product((2, 4), (1e-6, 0.02, 0.3)):  # a mixture of chi squares
        terms, half = np.arange(400), 100 * share / (1.0 - share)
        tails = stats.chi2.sf(stats.chi2.isf(1e-3, calls - 1), calls - 1 + 2 * terms)
        yield Calls(calls), share, 200, 1e-3, float(stats.poisson.pmf(terms, half) @ tails)
    yield Repeats(), 0.03, 50, 1e-3, 1 - 0.97**50
    yield Repeats(), 0.0, 50, 1e-3, 0.0
    yield Trend(), 0.9, 30, 1e-3, 0.0
    # One draw fewer than these has no power; see below.
    for family, far, fewest in FEWEST:
        yield family, far, fewest - 1, 0.01, 0.0


FEWEST: list[tuple[Family, float, int]] = [
    (TwoSample(), 1.0, 20),
    (TwoSample(ratio=0.1), 1.0, 200),
    (Smooth(order=1), 1.0, 500),
    (Scale(dof=0.5), 1e4, 2),
]


@pytest.mark.parametrize(("family", "alternative", "size", "level", "power"), [*powers()])
def test_power_agrees_with_references(
    family: Family, alternative: float, size: int, level: float, power: float
) -> None:
    assert family.power(alternative, size, level) == pytest.approx(power, rel=1e-6)


NEIGHBOURS = [np.arange(60.0).reshape(3, 20), np.arange(1000.0).reshape(2, 500), np.arange(80.0).reshape(16, 5)]


@pytest.mark.parametrize("groups", [[[1, 2], [3]], [[1, 2], [3, 4]], [[1, 1, 2, 2], [2, 3, 3]], *NEIGHBOURS])
def test_the_effect_and_interval_of_calls_agree_with_scipy(groups: Sequence[Sequence[float]]) -> None:
    sizes = [len(group) for group in groups]
    outcome, count, freedom = Calls(len(groups)).test(np.concatenate(groups), sizes), sum(sizes), len(groups) - 1
    assert Calls(len(groups)).test(np.concatenate(groups), np.array(sizes, dtype=np.uint64)) == outcome
    assert outcome.p_value == pytest.approx(stats.kruskal(*groups).pvalue, rel=1e-9)
    statistic = float(stats.kruskal(*groups).statistic)  # variance between calls, times count - 1
    odds = (count - 1) * statistic / (count - 1 - statistic)
    assert outcome.effect == pytest.approx((odds - freedom) / (odds - freedom + count), rel=1e-9)
    assert (outcome.null_effect, outcome.count) == (0.0, count)
    for end, chance in ((outcome.low, 0.005), (outcome.high, 0.995)):
        if stats.chi2.sf(odds, freedom) >= chance:
            assert end == 0.0
        else:
            assert stats.ncx2.sf(odds, freedom, count * end / (1.0 - end)) == pytest.approx(chance, rel=1e-5)


def test_trends_are_signed_standardised_and_add_up_over_calls() -> None:
    """The mean of z² over all orders of two small calls is 1, with ties; a call of equal values adds nothing."""
    orders = itertools.product(itertools.permutations([1.0, 1.0, 9.0, 4.0]), itertools.permutations([2.0, 7.0, 3.0]))
    z = [Trend().test([*one, *other, *[5.0] * 30], [4, 3, 30]).effect * 34**0.5 for one, other in orders]
    assert np.mean(np.square(z)) == pytest.approx(1.0, rel=1e-9)
    rising = np.arange(40.0)
    assert Trend().test(rising, [40]).effect > 0.9
    assert Trend().test(-rising, [40]).effect < -0.9
    # A jump between calls is no trend within them; across 200 it is some 10 standard deviations.
    jump = stream(0, "tests", "jump").random(200) + np.repeat([0.0, 100.0], 100)
    assert Trend().test(jump, [100, 100]).p_value > FALSE_ALARM
    assert Trend().test(jump, [200]).p_value < FALSE_ALARM
