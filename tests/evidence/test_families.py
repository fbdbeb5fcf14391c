"""Every family, with draws of a chosen effect: outcomes, power, level, intervals, sizes, pools and refusals."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import digest, stream
from attncheck.evidence import Evidence
from attncheck.evidence.exchange import TIE, Calls, Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count, Family, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import Blocks, EqualVariances, LargestAssociation, WithinGroups
from attncheck.evidence.ledger import Entry
from attncheck.evidence.looks import Budget, examine, examine_blocks, per_look_power
from attncheck.evidence.normal import Order
from attncheck.evidence.pools import CLIP, Pool
from attncheck.evidence.summaries import Events, NormalScore, from_record, normal_score, to_record
from tests.refusals import refused

Data = tuple[Any, ...]
Draw = Callable[[np.random.Generator, int, float], Data]


def bounds(trials: int, chance: float) -> tuple[int, int]:
    """Return the fewest and most events, exceeded either way with chance at most 1e-7.

    With some 100 such counts noise fails the suite with chance below 1e-5 for any seed.
    """
    return int(stats.binom.ppf(5e-8, trials, chance)), int(stats.binom.isf(5e-8, trials, chance))


def pool_of(*outcomes: Outcome) -> Pool:
    return Pool({str(k): outcome.summary for k, outcome in enumerate(outcomes) if outcome.summary is not None})


#: Draws per call.
CALL = 100
WIDTHS = np.array([32.0, 128.0, 512.0])


class FastCalls(Calls):
    """Calls without the interval, which takes nearly all the time and affects neither p-values nor summaries."""

    @staticmethod
    def _noncentrality(statistic: float, freedom: int, tail: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Case:
    """A family, its data with a true effect, and where to examine it.

    `exact`: null p-values are uniform, not only valid; `normal`: so are those of pools. `bound`: power is a bound.
    """

    family: Family
    draw: Draw
    size: int  # draws under the null
    alternatives: tuple[tuple[float, int], ...] = ()  # true effects, with numbers of draws
    exact: bool = True
    normal: bool = True
    bound: bool = False

    def outcomes(self, name: str, effect: float, size: int, replications: int) -> list[Outcome]:
        """Return the outcomes of independent samples with a true effect."""
        rng = stream(0, "tests", name, effect, size)
        return [self.family.test(*self.draw(rng, size, effect)) for _ in range(replications)]


def squares(rng: np.random.Generator, size: int, ratio: float) -> Data:
    """Some without degrees of freedom."""
    dof = rng.integers(0, 17, size=size)
    dof[: size // 2] = 16 - dof[size - size // 2 :]
    return 2.0 * ratio * rng.standard_gamma(dof / 2), dof


def pairs(rng: np.random.Generator, size: int, correlation: float) -> Data:
    """The scale of the weight does not matter."""
    weight = rng.standard_t(8, size=(size, 4))
    noise = math.sqrt(1.0 - correlation**2) * rng.standard_normal((size, 4))
    return noise + correlation * weight / math.sqrt(8 / 6), 1e200 * weight


def dependent_pairs(rng: np.random.Generator, size: int, correlation: float) -> Data:
    """Shared weights, mostly zero, as behind a mask."""
    weight = np.cumsum(rng.standard_cauchy((size, 4)), axis=0) * (rng.random((size, 4)) < 0.2)
    return rng.standard_normal((size, 4)), weight


def grouped_pairs(rng: np.random.Generator, size: int, correlation: float) -> Data:
    group, weight = rng.integers(2, size=size), rng.standard_normal(size)
    noise = math.sqrt(1.0 - correlation**2) * rng.standard_normal(size)
    return noise + correlation * weight + group, weight + 3.0 * group, group


def columns(rng: np.random.Generator, size: int, correlation: float) -> Data:
    """Columns with shared weights, at most one of them tied."""
    weight = np.repeat(rng.standard_t(8, size=(4 * size, 1)) / math.sqrt(8 / 6), 10, axis=1)
    noise = rng.standard_normal((4 * size, 10))
    noise[:, 7] = math.sqrt(1.0 - correlation**2) * noise[:, 7] + correlation * weight[:, 7]
    return noise, weight


def atom(rng: np.random.Generator, size: int, distance: float) -> FloatArray:
    """Return uniform values with the mass of an interval of length `distance` moved to its left end.

    One atom in the middle is the hardest case at that distance from uniform.
    """
    values, start = rng.random(size), 0.5 * (1.0 - distance)
    return np.where((values > start) & (values <= start + distance), start, values)


def units(rng: np.random.Generator, size: int, distance: float) -> Data:
    return (atom(rng, size, distance),)


def two_samples(rng: np.random.Generator, size: int, distance: float) -> Data:
    return atom(rng, size, distance), rng.random(3 * size)


def two_logarithms(rng: np.random.Generator, size: int, distance: float) -> Data:
    return np.log(rng.chisquare(2, size)), np.log(rng.chisquare(2, 3 * size))


def two_rounded(rng: np.random.Generator, size: int, distance: float) -> Data:
    ours, theirs = (np.round(rng.standard_normal(count), 1) for count in (size, 3 * size))
    return ours.astype(np.float32), theirs


def two_heavy_tails(rng: np.random.Generator, size: int, ratio: float) -> Data:
    return rng.standard_t(2, size), rng.standard_t(2, 3 * size)


def component(order: int) -> Draw:
    def draw(rng: np.random.Generator, size: int, mean: float) -> Data:
        # Rejection sampling of the density 1 + mean·φ_k, whose component is `mean`.
        top = 1.0 + abs(mean) * math.sqrt(2 * order + 1)
        values, heights = rng.random(2 * size), top * rng.random(2 * size)
        shape = math.sqrt(2 * order + 1) * np.polynomial.legendre.legval(2 * values - 1, [0] * order + [1])
        return (values[heights < 1.0 + mean * shape][:size],)

    return draw


def events(per_draw: int) -> Draw:
    return lambda rng, size, chance: (int(rng.binomial(size * per_draw, chance)), size * per_draw)


def marks(rng: np.random.Generator, size: int, share: float) -> Data:
    values = rng.integers(2**63, size=size, dtype=np.uint64)
    return (np.where(rng.random(size) < share, values[::-1], values),)


def calls(rng: np.random.Generator, size: int, share: float) -> Data:
    """Sixteen calls, and a share of the variance between them."""
    shifts = rng.permutation(np.linspace(-1.0, 1.0, 16))
    values = share**0.5 * shifts[:, None] / shifts.std() + (1.0 - share) ** 0.5 * rng.standard_normal((16, size // 16))
    return np.exp(values.ravel()), np.full(16, size // 16)


def trend(length: int) -> Draw:
    """Calls of a length, with a correlation of values and their order."""

    def draw(rng: np.random.Generator, size: int, correlation: float) -> Data:
        order = np.tile(np.linspace(-1.0, 1.0, length), size // length) * math.sqrt(3.0)
        noise = math.sqrt(1.0 - correlation**2) * rng.standard_normal(len(order))
        return correlation * order + noise, np.full(size // length, length)

    return draw


def sides(rng: np.random.Generator, size: int, share: float) -> Data:
    largest = np.where(rng.random((size, 1)) < share, 4.0, rng.random((size, 1)))
    return np.hstack([largest, rng.random((size, 1))]), np.full(size // CALL, CALL)


def variances(groups: int, dof: float) -> Draw:
    def draw(rng: np.random.Generator, size: int, ratio: float) -> Data:
        scales = np.r_[ratio, np.ones(groups - 1)]
        return rng.chisquare(dof, (size, groups)) * scales, np.full((size, groups), dof)

    return draw


def logarithms(rng: np.random.Generator, size: int, order: float) -> Data:
    return np.log(np.abs(rng.standard_normal((size, 3)))) + order * np.log(WIDTHS), WIDTHS


CASES = {
    "scale": Case(Scale(8), squares, 10, ((1.4, 60), (1 / 1.4, 60), (1.1, 800))),
    "association": Case(Association(4), pairs, 25, ((0.1, 400), (-0.1, 300), (0.03, 4000))),
    "association, dependent": Case(Association(4), dependent_pairs, 25),
    "association in groups": Case(WithinGroups(), grouped_pairs, 25, ((0.2, 500),)),
    "largest of 10": Case(
        LargestAssociation(4, 10), columns, 25, ((0.2, 125), (-0.2, 160)), exact=False, normal=False, bound=True
    ),
    "uniform": Case(Uniform(), units, 200, ((0.1, 900), (0.1, 700), (0.4, 60)), bound=True),
    "uniform, allowance": Case(
        Uniform(0.02), units, 500, ((0.08, 2000), (0.12, 800)), exact=False, normal=False, bound=True
    ),
    "smooth 1": Case(Smooth(1), component(1), 500, ((0.1, 2000), (-0.1, 1500))),
    "smooth 2": Case(Smooth(2), component(2), 500, ((0.08, 3000), (-0.08, 2500))),
    "smooth 3": Case(Smooth(3), component(3), 500, ((0.1, 2000),)),
    "smooth 4": Case(Smooth(4), component(4), 500, ((0.05, 6000), (-0.05, 8000))),
    "two samples": Case(TwoSample(3), two_samples, 40, ((0.1, 1200), (0.3, 120)), exact=False, bound=True),
    "two logarithms": Case(TwoSample(3, unit=1.0), two_logarithms, 40, exact=False),
    "two rounded": Case(TwoSample(3, unit=10.0), two_rounded, 40, exact=False, normal=False),
    "count, upper": Case(
        Count(0.002, per_draw=2), events(2), 700, ((0.01, 700), (0.006, 2000)), exact=False, normal=False
    ),
    "count, two-sided": Case(
        Count(0.3, tail="two-sided"), events(1), 50, ((0.4, 400), (0.2, 300), (0.35, 2000)), exact=False, normal=False
    ),
    "repeats": Case(Repeats(), marks, 50, exact=False, normal=False),
    "calls": Case(FastCalls(16), calls, 960, normal=False),
    "trend": Case(Trend(), trend(CALL), 200, ((0.25, 200), (-0.25, 200))),
    "trend of pairs": Case(Trend(), trend(2), 120),
    "extremes": Case(Extremes(), sides, 100, ((0.002, 4000), (0.02, 500)), exact=False, normal=False),
    "two variances": Case(EqualVariances(2, 5), variances(2, 5.0), 5),
    "variances": Case(
        EqualVariances(4, 16),
        variances(4, 16.0),
        5,
        ((1.21, 131), (1 / 1.21, 131)),
        exact=False,
        normal=False,
        bound=True,
    ),
    "order": Case(Order(-0.5), logarithms, 200, ((-0.4, 400), (-0.6, 400))),
    "blocks": Case(Blocks(Scale(4), 3), two_heavy_tails, 8, exact=False, normal=False),
}


# Outcomes and power from SciPy or by hand ---------------------------------------------------------


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


# Level, power, intervals, sample size, and pools of every family ----------------------------------


NULL, DEPARTED = 2400, 1000
LEVEL, POWER = 5e-4, 0.99
ALTERNATIVES = [(name, *alternative) for name, case in CASES.items() for alternative in case.alternatives]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_null_p_values_are_uniform_or_conservative_alone_and_pooled(name: str) -> None:
    case = CASES[name]
    outcomes = case.outcomes(name, case.family.null_effect, case.size, NULL)
    p_values = np.array([outcome.p_value for outcome in outcomes])
    assert case.family.continuous == case.exact
    for level in (0.05, 0.01, 0.001):
        fewest, most = bounds(NULL, level)
        assert (fewest if case.exact else 0) <= (p_values < level).sum() <= most
    assert not case.exact or Uniform().test(p_values).p_value > 1e-7
    check_pools([pool_of(*outcomes[start : start + 4]) for start in range(0, NULL, 4)], case.normal)


def check_pools(pools: list[Pool], normal: bool) -> None:
    """Check the level of 600 pools of four right cases each, and that their scores are standard normal."""
    # More than 8.5% of right pools below 0.05, or 3% below 0.01, have chances below 3e-4 each; at twice the level, 90%.
    p_values = np.array([pool.outcome().p_value for pool in pools])
    assert (p_values < 0.05).mean() < 0.085
    assert (p_values < 0.01).mean() < 0.03
    if normal:
        assert stats.kstest(p_values, "uniform").pvalue > 1e-6
        z = np.array([score.z for pool in pools for score in pool.summaries.values() if isinstance(score, NormalScore)])
        assert len(z) == NULL
        # Standard errors of 2,400 scores: mean 0.020, standard deviation 0.014; five of each.
        assert abs(z.mean()) < 0.10
        assert abs(z.std() - 1.0) < 0.07
    else:
        assert (p_values > 0.9).mean() > 0.06


@settings(max_examples=50)
@given(st.sampled_from(sorted(CASES)), st.integers(0, 20), st.permutations(range(5)))
def test_order_does_not_change_a_pool(name: str, first: int, order: list[int]) -> None:
    case = CASES[name]
    summaries = pool_of(*case.outcomes(f"{name} {first}", case.family.null_effect, case.size, 5)).summaries
    whole, keys = Pool(summaries), list(summaries)
    other = Pool({keys[k]: summaries[keys[k]] for k in order if k < len(keys)})
    assert other == whole
    assert other.outcome() == whole.outcome()
    assert other.mde(1e-3, 0.9) == whole.mde(1e-3, 0.9)


@pytest.mark.parametrize("name", CASES)
def test_outcomes_are_plain_numbers_and_a_record_holds_their_summary(name: str) -> None:
    case = CASES[name]
    for outcome in case.outcomes(name, case.family.null_effect, case.size, 3):
        assert outcome.low <= outcome.effect <= outcome.high or name == "calls"  # without its interval
        numbers = (outcome.p_value, outcome.effect, outcome.low, outcome.high, outcome.null_effect)
        assert {type(number) for number in numbers} == {float}
        assert type(outcome.count) is int
        assert outcome.summary is not None
        assert from_record(to_record(outcome.summary)) == outcome.summary
        assert len(str(to_record(outcome.summary))) < 200


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("name", "alternative", "size"), ALTERNATIVES)
def test_power_is_that_of_simulations_and_intervals_cover_the_true_effect(
    name: str, alternative: float, size: int
) -> None:
    case, level = CASES[name], 0.005
    outcomes = case.outcomes(name, alternative, size, DEPARTED)
    detected = sum(outcome.p_value < level for outcome in outcomes)
    fewest, most = bounds(DEPARTED, case.family.power(alternative, size, level))
    assert fewest <= detected
    assert case.bound or detected <= most
    covered = sum(outcome.low <= alternative <= outcome.high for outcome in outcomes)
    assert covered >= bounds(DEPARTED, 0.99)[0]


PLANS: list[tuple[Family, float]] = [
    *((CASES[name].family, effect) for name, effect, _ in ALTERNATIVES if effect > CASES[name].family.null_effect),
    (Calls(16), 0.1),
    (Scale(dof=1), 2.0),
    (Scale(dof=1000), 4.0),
    (LargestAssociation(per_draw=4, columns=120), 0.1),
    (Uniform(allowance=0.02, per_draw=3), 0.05),
    (TwoSample(ratio=0.5, per_draw=5), 0.1),
    (Count(0.001), 0.01),
    (Count(0.3, per_draw=10, tail="two-sided"), 0.35),
    (Count(0.0), 0.02),
]


@pytest.mark.parametrize(("family", "alternative"), PLANS)
def test_power_grows_and_size_and_smallest_effect_invert_it(family: Family, alternative: float) -> None:
    size, slack = family.size(alternative, LEVEL, POWER), 1e-7 * abs(alternative)
    assert size is not None
    assert family.power(alternative, size, LEVEL) >= POWER
    mde = family.mde(size, LEVEL, POWER)
    assert mde <= alternative + slack
    # Of two mirror images, the one that is harder to see counts.
    assert min(family.power(mirrored, size, LEVEL) for mirrored in family._mirrored(mde)) >= POWER
    assert {family.size(mirrored, LEVEL, POWER) for mirrored in family._mirrored(alternative)} == {size}
    if isinstance(family, Count):  # its power is a sawtooth in the size
        assert family.power(mde * 0.999, size, LEVEL) < POWER
    elif size > 1:
        assert family.mde(size - 1, LEVEL, POWER) > alternative
    half, farther = family.size(alternative, LEVEL, 0.5), alternative + 0.05 * abs(alternative)
    assert half is not None
    assert family.power(alternative, half, LEVEL) < family.power(farther, half, LEVEL) + 1e-12
    assert family.power(alternative, half, LEVEL) <= family.power(alternative, 2 * half, LEVEL)
    assert family.power(family.null_effect, half, LEVEL) <= LEVEL * (1 + 1e-9)


# Pools: power, counts, bounds and allowances


def test_counts_have_the_exact_law_of_their_sum() -> None:
    events = {"a": Events(2, 40, 0.05), "b": Events(3, 20, 0.01), "c": Events(0, 10, 0.0)}
    law = {
        hits: sum(stats.binom.pmf(k, 40, 0.05) * stats.binom.pmf(hits - k, 20, 0.01) for k in range(hits + 1))
        for hits in range(61)
    }
    upper = sum(chance for hits, chance in law.items() if hits >= 5)
    assert Pool(events).outcome().p_value == pytest.approx(upper, rel=1e-9)
    assert Pool({"a": Events(0, 10, 0.0), "b": Events(1, 10, 0.0)}).outcome().p_value == 0.0
    assert Pool({"a": Events(0, 10, 0.0), "b": Events(0, 10, 0.0)}).outcome().p_value == 1.0
    many = {str(k): Events(3_000, 6_000, 0.5, one_sided=False) for k in range(25)}
    assert Pool(many).outcome().p_value == pytest.approx(1.0)
    far = {**many, "0": Events(3_900, 6_000, 0.5, one_sided=False)}
    exact = 2.0 * stats.binom.sf(24 * 3_000 + 3_900 - 1, 25 * 6_000, 0.5)
    assert Pool(far).outcome().p_value == pytest.approx(exact, rel=1e-3)


def test_counts_are_summed_on_the_side_that_their_family_tests() -> None:
    for tail, p_value in (("upper", 1.0), ("two-sided", 2.0 * 0.7**100)):
        together = pool_of(*2 * [Count(0.3, tail=tail).test(0, 50)]).outcome()
        assert together.p_value == pytest.approx(p_value, rel=1e-6)
        assert together.at_most == (tail == "upper")


def test_the_gap_of_a_statistic_that_is_never_negative_has_one_side() -> None:
    signed, upwards = (
        Pool({"a": NormalScore(0.0, 4.0, unit), "b": NormalScore(0.0, 5.0, unit)}) for unit in ("shift", "excess")
    )
    level, power = 1e-3, 0.9
    for pool, tail in ((signed, 0.5 * level), (upwards, level)):
        assert pool.mde(level, power) == pytest.approx((stats.norm.isf(tail) + stats.norm.ppf(power)) / 3.0)


def test_the_effect_of_a_statistic_that_is_never_negative_is_none_where_there_is_no_excess() -> None:
    """Right samples may differ in whether a p-value is 1, but not in effect: a gate would see a drift."""
    nothing = NormalScore(normal_score(0.0, 1.0), 1.0, "excess")
    effects = [Pool({"a": NormalScore(z, 1.0, "excess"), "b": nothing}).outcome().effect for z in (-1.0, 1.0, 4.4)]
    assert effects == [0.0, 0.0, 0.0]
    together = Pool({"a": NormalScore(1.0, 1.0, "excess"), "b": NormalScore(3.0, 1.0, "excess")}).outcome()
    assert together.effect == pytest.approx(2.0)
    assert together.p_value == pytest.approx(stats.norm.sf(4.0 / math.sqrt(2.0)))


def test_one_case_counts_up_to_a_bound_only() -> None:
    # An impossibly accurate p-value, in a pool of twenty without evidence.
    quiet = {str(k): NormalScore(0.0, 100.0) for k in range(20)}
    loud = Pool({**quiet, "x": NormalScore(38.0, 100.0)}).outcome()
    assert loud.p_value == pytest.approx(2.0 * stats.norm.sf(CLIP / math.sqrt(21.0)))


def test_samples_without_information_say_nothing() -> None:
    empty = Pool({"a": NormalScore(0.0, 0.0), "b": NormalScore(0.0, 0.0)})
    assert empty.outcome().p_value == 1.0
    assert empty.mde(1e-3, 0.9) == math.inf


# Bad input is refused by a message that names field, value and remedy -----------------------------


SCORE = NormalScore(0.0, 1.0)
FEW_OR_NAN = [np.zeros(19), np.full(40, math.nan)]
FAMILIES = [case.family for name, case in CASES.items() if name != "blocks"]
# For draws that their own generator does not decide.
SHARED = np.random.default_rng(0)


# Calls with usable arguments, some of which are replaced below.
entry = functools.partial(Entry, id="a/1", case="a", verdict="consistent", p_values=(0.4,))
counted = functools.partial(Events, events=0, trials=1, probability=0.5)
outcome = functools.partial(Outcome, p_value=0.5, effect=0.0, low=0.0, high=0.0, null_effect=0.0, count=1)
size_of = functools.partial(Association().size, 0.5, level=LEVEL, power=POWER)


def scale(draw: Any) -> None:
    Evidence().assert_scale(draw, std=0.5, effect=0.1)


def law(law: Any, effect: float = 0.1) -> None:
    Evidence().assert_law(normals, law, effect)


def twice(rng: np.random.Generator, size: int) -> Any:
    return rng.standard_normal(size // 2).repeat(2)


def normals(rng: np.random.Generator, size: int) -> Any:
    return rng.standard_normal(size)


def few_values(family: Any) -> None:
    Evidence().assert_statistic(normals, family, lambda draws: (stats.norm.cdf(draws[:9]),), 0.5, "shift")


def p_values(values: Callable[[np.random.Generator], Any]) -> None:
    Evidence().assert_p_values(lambda seed: values(np.random.default_rng(seed)))


#: A function with one argument that it refuses, and values of it.
VALUES: list[tuple[Callable[..., Any], str, list[Any]]] = [
    (Scale, "dof", [0]),
    (lambda squares: Scale(1).test(squares), "squares", [[1.0, math.nan], [-1.0], [1e308, 1e308]]),
    (lambda dof: Scale(1).test([1.0], dof), "dof", [[1.0, 1.0], [math.nan]]),
    (lambda weight: Association().test([1.0], weight), "weight", [[1.0, 2.0], [math.inf]]),
    (lambda noise: Association().test(noise, [1.0]), "noise", [[math.nan], ["a"]]),
    *((family, "per_draw", [0]) for family in (Association, Uniform, TwoSample)),
    (LargestAssociation, "columns", [0]),
    (lambda noise: LargestAssociation().test(noise, [[1.0]]), "noise", [[[math.nan]], [1.0]]),
    (size_of, "power", [1.0, LEVEL]),
    (size_of, "cap", [0]),
    (functools.partial(Association().mde, level=LEVEL, power=POWER), "size", [0]),
    (Uniform, "allowance", [1.5]),
    (Uniform().test, "values", [[0.5, -1e-6], [math.nan]]),
    (Smooth, "order", [0, 5]),
    (TwoSample, "ratio", [0.0]),
    (TwoSample, "unit", [-1.0]),
    (functools.partial(TwoSample().test, reference=np.zeros(40)), "sample", FEW_OR_NAN),
    (functools.partial(TwoSample().test, np.zeros(40)), "reference", FEW_OR_NAN),
    (Count, "probability", [-0.1]),
    (functools.partial(Count, 0.5), "tail", ["lower"]),
    (functools.partial(Count(0.5).test, trials=4), "events", [5]),
    (functools.partial(Count(0.5).test, 0), "trials", [0]),
    (outcome, "p_value", [math.nan]),
    (outcome, "effect", [math.inf]),
    (outcome, "count", [-1]),
    (Calls, "calls", [1]),
    (functools.partial(EqualVariances, dof=5), "groups", [1]),
    (functools.partial(EqualVariances, 2), "dof", [0]),
    (lambda dof: EqualVariances(2, 5).test(np.ones((1, 2)), dof), "dof", [np.ones((1, 3))]),
    (lambda logs: Order(-0.5).test(logs, (1, 4, 16)), "logs", [np.zeros((5, 2)), np.full((5, 3), math.nan)]),
    (lambda widths: Order(-0.5).test(np.zeros((5, 3)), widths), "widths", [[1, 4, 8]]),
    (
        Pool,
        "summaries",
        [
            {},
            *({"a": SCORE, "b": other} for other in (Events(0, 1, 0.5), NormalScore(0.0, 1.0, "ratio"))),
            {"a": Events(0, 1, 0.5), "b": Events(0, 1, 0.5, one_sided=False)},
        ],
    ),
    (functools.partial(NormalScore, information=1.0), "z", [math.nan]),
    (functools.partial(NormalScore, 0.0), "information", [-1.0]),
    (functools.partial(NormalScore, 0.0, 1.0), "unit", ["ratios"]),
    (functools.partial(NormalScore, 0.0, 1.0), "bias", [-1.0]),
    (counted, "events", [2]),
    (counted, "trials", [0]),
    (counted, "probability", [1.5]),
    (Budget, "false_alarm", [0.0, 1.0, math.nan]),
    (Budget, "ledger_share", [0.0, 1.0]),
    (Budget().level, "statistics", [0, 1.5]),
    (per_look_power, "target", [0.0, 1.0]),
    (functools.partial(stream, 0, "a"), "look", [0]),
    (functools.partial(stream, 0, "a"), "role", [1]),
    (functools.partial(digest, "a"), "length", [0, 65]),
    (entry, "verdict", ["passed"]),
    (entry, "p_values", [(), (1.5,), (math.nan,), ("x",)]),
    (entry, "id", [""]),
    (entry, "case", [3]),
]
#: Calls, and the field that their message names.
BAD: list[tuple[Callable[[], Any], str]] = [
    *((functools.partial(call, **{name: value}), name) for call, name, values in VALUES for value in values),
    # Blocks leave this to their family; orders may be any number.
    *((functools.partial(family.power, -9.0, 1000, LEVEL), "alternative") for family in FAMILIES[:-1]),
    *((functools.partial(family.power, family.null_effect, 0, LEVEL), "size") for family in FAMILIES),
    *((functools.partial(family.power, family.null_effect, 1000, 1.0), "level") for family in FAMILIES),
    (lambda: Association().test([], []), "weight"),
    (lambda: Association().test([1e308, -1e308], [1.0, 1.0]), "noise"),
    (lambda: LargestAssociation().test([[1.0, 2.0]], [[1.0], [2.0]]), "weight"),
    (lambda: Calls(2).test([1.0, math.nan, 2.0], [2, 1]), "values"),
    (lambda: Trend().test([np.nan] * 40, [40]), "values"),
    (lambda: entry(combined=-1.0), "p_values"),
    *((lambda summary=summary: from_record(summary), "summary") for summary in ({"z": 1.0}, {"trials": 1})),
    (lambda: stream(-1, "a"), "run_seed"),
    *((lambda key=key: stream(0, key), "key") for key in (object(), np.zeros(3), {"x": [math.nan]})),
    *((functools.partial(run, lambda *_: {}, ["a"], 0.0), "level") for run in (examine, examine_blocks)),
]


MESSAGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: scale(normals(SHARED, 100)), r"^draw=.*100: .*too few to find this effect; pass at least [\d,]+$"),
    (lambda: scale(lambda rng, size: rng.standard_normal((size, 2))), "^draw=.*must have the shape"),
    (lambda: scale(lambda rng, size: rng.standard_normal(size + 1)), "^draw=.*must have the shape"),
    (lambda: scale(lambda rng, size: np.full(size, np.nan)), "^draw=.*must be finite"),
    (lambda: scale(lambda rng, size: np.zeros(size)), "^draw=.*is the value of all draws"),
    (lambda: scale(lambda rng, size: SHARED.standard_normal(size)), "^draw=.*differs between calls"),
    (lambda: Evidence().assert_law(twice, stats.norm(), 0.1), "^draw=.*only 8 of 16 .* distinct"),
    (lambda: scale(lambda rng, size: np.random.default_rng(0).standard_normal(size)), "^draw=.*for two generators"),
    (lambda: scale(lambda rng, size: ["a"] * size), "^draw=.*must hold real numbers"),
    (lambda: law(stats.poisson(3.0)), "^law=.*is discrete"),
    (lambda: law(3.0), "^law=.*no distribution function"),
    (lambda: law(lambda values: 0.5), "^law="),
    (lambda: law(stats.t), "^law="),
    (lambda: law(stats.norm(loc=[0.0, 1.0])), "^law="),
    (lambda: law(stats.norm(), 1e-4), "^effect=.*draws per look"),
    (lambda: few_values(Smooth(1)), "^measure=.*give too few values"),
    (lambda: Evidence().assert_independent(normals, effect=0.1), "^draw=.*must give x and y"),
    (lambda: Evidence(alpha=0.0), "^alpha="),
    (lambda: Evidence(power=1.0), "^power="),
    (lambda: p_values(lambda rng: ({"mean": np.nan}, {})), "return a chance for mean"),
    (lambda: p_values(lambda rng: ({"mean": np.nan}, {"mean": 0.0})), "return a chance for mean"),
    (lambda: p_values(lambda rng: ({}, {})), "returned no p-value"),
    (lambda: p_values(lambda rng: ({f"mean {rng.uniform()}": 1e-9}, {})), "names other nulls with another seed"),
]


#: Field, value, problem and remedy.
PATTERN = r"^{}=(?!None:).+: (?:[a-z]|NaN).+; [a-z]+ [^X]+$"


@pytest.mark.parametrize(("call", "pattern"), [*((call, PATTERN.format(field)) for call, field in BAD), *MESSAGES])
def test_bad_input_names_field_value_and_remedy(call: Callable[[], Any], pattern: str) -> None:
    refused(call, pattern)
