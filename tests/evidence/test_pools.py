"""Pools: power, counts, bounds and allowances. See test_all_families.py for their level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from attncheck.evidence.families import Count, Outcome, Scale, TwoSample, Uniform
from attncheck.evidence.pools import CLIP, Pool
from attncheck.evidence.summaries import Events, NormalScore, normal_score


def pool_of(*outcomes: Outcome) -> Pool:
    return Pool({str(k): outcome.summary for k, outcome in enumerate(outcomes) if outcome.summary is not None})


def test_a_pool_sees_what_its_gap_says() -> None:
    # Scales of three cases, one with few draws: 90% of 1,000 pools of this effect, or its mirror image, are found
    # (standard error 0.01; the logarithm of a scale is not quite normal).
    rng, sizes, level = np.random.default_rng(3), (400, 300, 10), 1e-3

    def pool(ratio: float) -> Pool:
        return pool_of(*(Scale(4).test(ratio * rng.chisquare(4, size)) for size in sizes))

    mde = pool(1.0).mde(level, 0.9)
    single = Scale(4).mde(400, level, 0.9)
    assert 1.0 < mde < single
    for ratio in (mde, 1.0 / mde):
        found = np.mean([pool(ratio).outcome().p_value < level for _ in range(1000)])
        assert 0.86 < found < 0.94


def test_small_departures_add_up() -> None:
    # Sizes 3% too large in twenty samples, few of them suspicious alone.
    rng, family = np.random.default_rng(5), TwoSample(4, unit=1.0)
    samples = ((1.03**2 * rng.chisquare(8, 1000), rng.chisquare(8, 4000)) for _ in range(20))
    outcomes = [family.test(np.log(ours), np.log(theirs)) for ours, theirs in samples]
    together = pool_of(*outcomes).outcome()
    assert np.median([outcome.p_value for outcome in outcomes]) > 1e-3
    assert together.p_value < 1e-6
    assert together.low < 1.03**2 < together.high


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


def test_what_the_null_allows_changes_no_pool() -> None:
    # Cases at their allowance, all on one side: p-values are valid.
    rng, family = np.random.default_rng(7), Uniform(0.01)

    def pool(size: int, scale: float) -> Pool:
        return pool_of(*(family.test(rng.random(size) * scale) for _ in range(10)))

    assert np.mean([pool(20, 0.99).outcome().p_value < 0.05 for _ in range(200)]) < 0.05
    assert pool(4000, 0.96).outcome().p_value < 1e-6


def test_samples_without_information_say_nothing() -> None:
    empty = Pool({"a": NormalScore(0.0, 0.0), "b": NormalScore(0.0, 0.0)})
    assert empty.outcome().p_value == 1.0
    assert empty.mde(1e-3, 0.9) == math.inf
