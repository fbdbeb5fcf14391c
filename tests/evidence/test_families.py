"""Families against references, effect and size as inverses, and bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.streams import stream
from attncheck.evidence.distances import least_power
from attncheck.evidence.families import Association, Count, Family, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.family import CondensedData, smallest_integer, smallest_real
from attncheck.evidence.groups import LargestAssociation

LEVEL, POWER = 5e-4, 0.99
ONE_AND_ALL = ((1, slice(2, 3)), (5, slice(None)))


def test_a_departure_that_no_affordable_sample_shows_has_no_size_and_no_gap() -> None:
    assert Association().size(1e-3, LEVEL, POWER, cap=1000) is None
    assert Association().size(0.0, LEVEL, POWER) is None
    assert Uniform(allowance=0.05).size(0.04, LEVEL, POWER) is None
    assert Association().mde(5, LEVEL, POWER) == math.inf
    assert Smooth(order=1).mde(499, LEVEL, POWER) == math.inf
    assert TwoSample().mde(10, LEVEL, POWER) == math.inf


def test_gap_and_size_show_both_mirror_images() -> None:
    class Lopsided(Family):
        null_effect, _farthest = 0.0, 1.0

        def test(self, *args: Any, **kwargs: Any) -> Outcome:
            raise NotImplementedError

        def condensed(self, *data: Any) -> CondensedData:
            raise NotImplementedError

        def power(self, alternative: float, size: int, level: float) -> float:
            return min(1.0, 10 * level * size * (alternative if alternative > 0.0 else -0.5 * alternative))

        def _mirrored(self, alternative: float) -> tuple[float, ...]:
            return alternative, -alternative

    family = Lopsided()
    assert family.mde(100, level=0.01, power=0.8) == pytest.approx(0.16)
    assert family.mde(10, level=0.01, power=0.8) == math.inf
    assert family.size(0.15, level=0.01, power=0.8) == family.size(-0.15, level=0.01, power=0.8) == 107
    assert family.size(0.15, level=0.01, power=0.8, cap=106) is None


@pytest.mark.parametrize("ratio", [0.5, 0.97, 1.0, 1.2, 3.0])
def test_scale_agrees_with_scipy(ratio: float) -> None:
    total, dof = 300.0 * ratio, 300.0
    outcome = Scale(dof=3).test(np.full(100, total / 100))
    law = stats.chi2(dof)
    assert outcome.p_value == pytest.approx(min(1.0, 2 * min(law.cdf(total), law.sf(total))), rel=1e-9)
    assert outcome.low == pytest.approx(total / law.isf(0.005), rel=1e-9)
    assert outcome.high == pytest.approx(total / law.ppf(0.005), rel=1e-9)
    assert outcome.effect == pytest.approx(ratio)
    assert outcome.count == 300


def test_scale_keeps_its_tails_at_huge_degrees_of_freedom() -> None:
    dof = 1e9
    outcome = Scale(dof=dof).test([dof + 4.0 * math.sqrt(2 * dof)])
    assert outcome.p_value == pytest.approx(2 * stats.norm.sf(4.0), rel=0.01)


def test_association_with_nothing_to_weigh_says_nothing() -> None:
    outcome = Association().test(np.ones(5), np.zeros(5))
    assert outcome == Outcome(p_value=1.0, effect=0.0, low=-1.0, high=1.0, null_effect=0.0, count=0)


def test_the_largest_of_one_is_itself_and_of_many_counts_them() -> None:
    rng = stream(0, "tests", "largest")
    noise, weight = rng.standard_normal((200, 5)), rng.standard_normal((200, 5))
    weight[50:, 2], weight[:, 3] = 0.0, 0.0
    noise[:, 2] += weight[:, 2]
    tied = Association().test(noise[:, 2], weight[:, 2])
    alone, outcome = (
        LargestAssociation(columns=k).test(noise[:, columns], weight[:, columns]) for k, columns in ONE_AND_ALL
    )
    assert (alone.p_value, alone.effect, alone.count) == (tied.p_value, tied.effect, 50)
    assert alone.low == pytest.approx(tied.low)
    assert (outcome.effect, outcome.count, outcome.p_value) == (tied.effect, 50, 5 * tied.p_value)
    wider = stats.norm.isf(0.001) / stats.norm.isf(0.005)
    assert outcome.high - outcome.effect == pytest.approx(wider * (tied.high - tied.effect))
    nothing = LargestAssociation(columns=2).test(np.ones((3, 2)), np.zeros((3, 2)))
    assert (nothing.p_value, nothing.count) == (1.0, 0)
    assert (LargestAssociation().continuous, LargestAssociation(columns=2).continuous) == (True, False)


@pytest.mark.parametrize("noise", [[0.1, -0.2, 0.3], [3.0, -4.0, 50.0], [0.9, -0.8, 1.1]])
def test_the_interval_of_an_association_has_the_larger_spread(noise: list[float]) -> None:
    weight = np.array([0.2, -3.0, 0.7])
    terms = np.array(noise) * weight / np.linalg.norm(weight)
    outcome, reach = Association().test(noise, weight), stats.norm.isf(0.005) / math.sqrt(3)
    half = reach * max(1.0, math.sqrt(3) * float(np.sqrt(np.mean(terms**2) - np.mean(terms) ** 2)))
    assert outcome.effect == pytest.approx(terms.sum() / math.sqrt(3))
    assert (outcome.low, outcome.high) == pytest.approx((outcome.effect - half, outcome.effect + half))
    assert outcome.null_effect == 0.0


@pytest.mark.parametrize(("values", "spread"), [((np.arange(600) + 0.5) / 600, 1.0), (np.arange(600) % 2, 3**0.5)])
def test_the_interval_of_a_component_has_the_larger_spread(values: np.ndarray, spread: float) -> None:
    # √3 (2u - 1): a grid spreads less than the uniform law, the two ends √3.
    outcome, half = Smooth(order=1).test(values), stats.norm.isf(0.005) * spread / math.sqrt(600)
    assert (outcome.low, outcome.high) == pytest.approx((-half, half))
    assert outcome.null_effect == 0.0


def test_association_counts_the_pairs_that_matter() -> None:
    outcome = Association().test([1.0, 2.0, 30.0], [1.0, 1.0, 0.0])
    assert outcome.count == 2
    assert outcome.effect == pytest.approx(1.5)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_uniform_agrees_with_scipy(count: int) -> None:
    values = stream(0, "tests", "uniform", count).random(count) ** 1.3
    outcome, reference = Uniform().test(values), stats.kstest(values, "uniform")
    assert outcome.p_value == pytest.approx(reference.pvalue, rel=1e-9)
    assert outcome.effect == pytest.approx(reference.statistic, rel=1e-12)


def test_an_allowance_shifts_the_distance() -> None:
    values = 0.9 * (np.arange(400) + 0.5) / 400
    outcome = Uniform(allowance=0.05).test(values)
    assert outcome.p_value == pytest.approx(stats.kstwo.sf(outcome.effect - 0.05, 400))
    assert (outcome.null_effect, outcome.at_most) == (0.05, True)
    assert Uniform().test(values).at_most is False
    assert Uniform(allowance=0.2).test(values).p_value == 1.0


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_smooth_components_are_orthonormal(order: int) -> None:
    grid = (np.arange(20_000) + 0.5) / 20_000
    assert Smooth(order).test(grid).effect == pytest.approx(0.0, abs=1e-6)
    tilted = [Smooth(order).test(stats.beta(*shape).ppf(grid)).effect for shape in ((1.2, 1), (1.2, 1.2))]
    # Beta(a, a) is symmetric: odd components vanish, and mass in the middle is found.
    assert (abs(tilted[1]) < 1e-6) == (order % 2 == 1)
    assert abs(tilted[0]) > 1e-3


@pytest.mark.parametrize(("size", "other"), [(20, 20), (30, 90), (50, 50), (51, 76), (100, 400), (200, 200)])
def test_two_sample_p_values_are_not_below_the_exact_ones(size: int, other: int) -> None:
    for shift in np.linspace(0.05, 0.9, 18) + 1e-3 / 7.0:  # disjoint values
        sample, reference = np.arange(size) / size + shift, (np.arange(other) + 0.5) / other
        exact = stats.ks_2samp(sample, reference, method="exact")
        ours = TwoSample(ratio=other / size).test(sample, reference)
        assert ours.effect == pytest.approx(exact.statistic, rel=1e-12)
        floor = 1.0 if ours.p_value < 0.05 else 0.97
        assert ours.p_value >= floor * exact.pvalue * (1 - 1e-9)
        assert ours.p_value <= 1.5 * exact.pvalue or size < 200 or exact.pvalue < 1e-4


def test_the_interval_of_two_samples_is_that_of_both_bands() -> None:
    rng = stream(5, "two samples")
    ours, theirs = rng.standard_normal((30, 5)), rng.standard_normal((40, 20)) + 0.5
    outcome = TwoSample().test(ours, theirs)
    assert outcome.effect == pytest.approx(stats.ks_2samp(ours.ravel(), theirs.ravel()).statistic)
    # P(sup |F_n - F| > h) ≤ 2 exp(-2nh²), 0.005 for each of the two.
    half = sum(math.sqrt(math.log(2.0 / 0.005) / (2.0 * count)) for count in (150, 800))
    assert (outcome.low, outcome.high) == pytest.approx((max(0.0, outcome.effect - half), outcome.effect + half))
    assert outcome.null_effect == 0.0
    assert outcome.count == 150


@pytest.mark.parametrize("value", [0.1, -3.7e-9, 2.5e12])
def test_numbers_that_rounding_made_of_one_are_one(value: float) -> None:
    rng = stream(5, "rounded")
    exact, rounded = np.full(300, value), np.full(900, float(np.float32(value)))
    assert TwoSample().test(exact, rounded).effect == 0.0
    # An atom beside a continuous law, and numbers around 0.
    normal = stats.norm.ppf((np.arange(200) + 0.5) / 200) * value
    ours, theirs = (np.concatenate([atom, normal]) for atom in (exact, rounded))
    assert TwoSample().test(ours, theirs).effect < 0.2
    assert TwoSample(unit=1.0).test(np.zeros(300), rng.uniform(-1e-6, 1e-6, 900)).effect == 0.0
    assert TwoSample().test(exact, rounded * (1.0 + 1e-5)).effect == 1.0
    assert TwoSample().test(exact, rounded * (1.0 - 1e-5)).effect == 1.0


@pytest.mark.parametrize(
    ("ratio", "count", "alike", "distance"), [(4.0, 500, 800, 0.12), (0.25, 500, 200, 0.3), (3.0, 1_000, 1_500, 0.1)]
)
def test_two_samples_are_worth_their_effective_size(ratio: float, count: int, alike: int, distance: float) -> None:
    power = TwoSample(ratio=ratio).power(distance, count, LEVEL)
    assert 0.01 < power < 0.99999
    assert power == pytest.approx(TwoSample().power(distance, alike, LEVEL), rel=1e-12)
    assert power == TwoSample(ratio=ratio, per_draw=count // 10).power(distance, 10, LEVEL)


@pytest.mark.parametrize(("margin", "count"), [(0.3, 20), (0.12, 100), (0.0368, 1000)])
def test_least_power_is_that_of_the_worst_probability(margin: float, count: int) -> None:
    # If count·(q − margin) is whole, the bound is the binomial chance.
    below = np.arange(int(count * (1.0 - margin)) + 1)
    exact = 1.0 - float(np.max(stats.binom.cdf(below, count, below / count + margin)))
    assert exact - 0.01 < least_power(margin, count) < exact + 1e-4
    assert least_power(1.0, count) == least_power(1.5, count) == 1.0
    assert least_power(0.0, count) == least_power(-0.1, count) == 0.0


def test_the_fewest_values_that_are_tested_have_power() -> None:
    assert TwoSample().power(1.0, 20, 0.01) > 0.5
    assert TwoSample().power(1.0, 19, 0.01) == 0.0
    assert TwoSample(ratio=0.1).power(1.0, 199, 0.01) == 0.0
    assert Scale(dof=1).power(1e4, 1, 0.01) > 0.5
    assert Scale(dof=0.5).power(1e4, 1, 0.01) == 0.0
    assert Scale(dof=1).test([1.0]).count == 1
    assert Smooth(order=1).power(1.0, 500, 0.01) > 0.5
    assert Smooth(order=1).power(1.0, 499, 0.01) == 0.0


def test_sums_without_degrees_of_freedom_say_nothing() -> None:
    with_nothing, alone = Scale(dof=1).test([3.0, 0.0], [2.0, 0.0]), Scale(dof=1).test([3.0], [2.0])
    assert with_nothing == alone
    assert alone.null_effect == 1.0


@pytest.mark.parametrize(("events", "trials"), [(0, 40), (3, 40), (17, 40), (40, 40)])
def test_count_agrees_with_scipy(events: int, trials: int) -> None:
    reference = stats.binomtest(events, trials, 0.2, alternative="greater")
    outcome = Count(0.2).test(events, trials)
    assert outcome.p_value == pytest.approx(reference.pvalue, rel=1e-9)
    interval = stats.binomtest(events, trials, 0.2).proportion_ci(0.99, "exact")
    assert outcome.low == pytest.approx(interval.low)
    assert outcome.high == pytest.approx(interval.high)
    below = stats.binomtest(events, trials, 0.2, alternative="less").pvalue
    both = Count(0.2, tail="two-sided").test(events, trials).p_value
    assert both == pytest.approx(min(1.0, 2 * min(below, reference.pvalue)), rel=1e-9)


@pytest.mark.parametrize("tail", ["upper", "two-sided"])
@pytest.mark.parametrize("probability", [0.0, 0.01, 0.5])
def test_count_power_sums_over_every_possible_count(tail: str, probability: float) -> None:
    family, trials, truth = Count(probability, tail=tail), 60, 0.3
    rejected = [k for k in range(trials + 1) if family.test(k, trials).p_value < LEVEL]
    total = np.sum(stats.binom.pmf(rejected, trials, truth))
    assert family.power(truth, trials, LEVEL) == pytest.approx(total, rel=1e-9)


def test_rounding_outside_the_unit_interval_is_clipped() -> None:
    assert Uniform().test([1.0 + 1e-12, -1e-12, 0.5]).effect == pytest.approx(1 / 3)


def test_inversions_find_the_edge() -> None:
    assert smallest_integer(lambda n: n >= 1, 1) == 1
    assert smallest_integer(lambda n: n >= 7, 7) == 7
    assert smallest_integer(lambda n: n >= 8, 7) is None
    assert smallest_integer(lambda n: n >= 2, 1) is None
    for edge in range(1, 70):
        found = smallest_integer(lambda n, edge=edge: n >= edge, 69)  # type: ignore[misc]
        assert (found, type(found)) == (edge, int)
    assert smallest_real(lambda x: x >= 0.25, 0.0, 1.0) == pytest.approx(0.25, rel=1e-8)
    assert smallest_real(lambda x: x >= 1.0 + 1e-6, 1.0, 10.0) - 1.0 == pytest.approx(1e-6, rel=1e-6)
    assert smallest_real(lambda x: False, 0.0, 1.0) == math.inf


@pytest.mark.parametrize("count", [20, 4_000, 65_000, 500_000])
def test_a_sample_within_its_allowance_is_never_suspicious(count: int) -> None:
    # scipy.stats.kstwo.sf(1e-4, 65_000) overflows to 0.
    middles = (np.arange(count) + 0.5) / count
    for beyond in (0.0, 0.01, 0.05, 0.09, 0.15):
        shifted = np.clip(middles + 0.004 + beyond / math.sqrt(count), 0.0, 1.0)
        assert Uniform(allowance=0.004 + 0.5 / count).test(shifted).p_value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("family", "at_most"), [(Count(0.1), True), (Count(0.0), False), (Count(0.1, tail="two-sided"), False)]
)
def test_counts_say_whether_fewer_are_allowed(family: Count, at_most: bool) -> None:
    assert family.test(0, 10).at_most is at_most
