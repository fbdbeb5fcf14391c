"""Pools: power, counts, bounds and allowances. See test_all_families.py for their level."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from attncheck.evidence.families import Count
from attncheck.evidence.pools import CLIP, Pool
from attncheck.evidence.summaries import Events, NormalScore, normal_score

from .families import pool_of


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
