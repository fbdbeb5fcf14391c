"""Pools: independent of order, at their level for every family, and as powerful as stated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attncheck.evidence.exchange import Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import EqualVariances, LargestAssociation
from attncheck.evidence.orders import Order
from attncheck.evidence.pools import CLIP, Pool
from attncheck.evidence.summaries import Events, NormalScore, Summary, from_record, normal_score, to_record

from .alone import Alone

Draw = Callable[[np.random.Generator], Summary | None]
WIDTHS = np.array([32, 128, 512])


def _order(rng: np.random.Generator) -> Summary | None:
    logs = np.log(np.abs(rng.standard_normal((200, 3)) / np.sqrt(WIDTHS)))
    return Order(-0.5).test(logs, WIDTHS).summary


def _two(values: Callable[[int], np.ndarray], unit: float = 0.0) -> Summary | None:
    return TwoSample(4, unit=unit).test(values(40), values(160)).summary


#: One null sample per family, of an unusual law if any is allowed.
FAMILIES: dict[str, Draw] = {
    "scale": lambda rng: Scale(3).test(rng.chisquare(3, 5)).summary,
    "association": lambda rng: Association().test(rng.standard_normal(30), rng.standard_cauchy(30)).summary,
    "smooth": lambda rng: Smooth(2).test(rng.random(500)).summary,
    "uniform": lambda rng: Uniform().test(rng.random(30)).summary,
    "allowance": lambda rng: Uniform(0.01).test(rng.random(20) * 0.99).summary,
    "two-sample": lambda rng: _two(rng.standard_cauchy),
    "logarithms": lambda rng: _two(lambda size: np.log(rng.chisquare(2, size)), unit=1.0),
    "atoms": lambda rng: _two(lambda size: rng.integers(0, 3, size) * 0.1),
    "count": lambda rng: Count(0.002).test(int(rng.binomial(1000, 0.002)), 1000).summary,
    "two-sided": lambda rng: Count(0.3, tail="two-sided").test(int(rng.binomial(50, 0.3)), 50).summary,
    "repeats": lambda rng: Repeats().test(np.arange(50, dtype=np.uint64)).summary,
    "calls": lambda rng: Alone(3).test(rng.standard_cauchy(90), np.array([30, 30, 30])).summary,
    "largest": lambda rng: LargestAssociation(columns=3).test(*rng.standard_normal((2, 40, 3))).summary,
    "extremes": lambda rng: Extremes().test(rng.random((40, 2)), np.array([20, 20])).summary,
    "trend": lambda rng: Trend().test(rng.standard_cauchy(40), np.array([20, 20])).summary,
    "alike": lambda rng: EqualVariances(3, 2).test(rng.chisquare(2, (5, 3)), np.full((5, 3), 2.0)).summary,
    "order": _order,
}
#: Families with uniform null p-values; the others are conservative.
CONTINUOUS = ("trend", "scale", "association", "smooth", "uniform", "two-sample", "logarithms", "order")


def _pool(draw: Draw, rng: np.random.Generator, cases: int = 4) -> Pool:
    found = {str(case): draw(rng) for case in range(cases)}
    return Pool({key: summary for key, summary in found.items() if summary is not None})


@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 20), st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_neither_order_nor_grouping_shows_in_a_digit(name: str, seed: int, places: list[int]) -> None:
    summaries = _pool(FAMILIES[name], np.random.default_rng(seed), 5).summaries
    whole = Pool(summaries)
    parts = [
        Pool({key: summaries[key] for key, each in zip(summaries, places, strict=True) if each == place})
        for place in sorted(set(places))
    ]
    for order in itertools.permutations(parts):
        merged = order[0]
        for part in order[1:]:
            merged = merged.merge(part)
        assert merged == whole
        assert merged.outcome() == whole.outcome()
        assert merged.mde(1e-3, 0.9) == whole.mde(1e-3, 0.9)
    if len(parts) == 3:
        first, second, third = parts
        assert first.merge(second.merge(third)) == first.merge(second).merge(third) == whole


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_level_is_kept_and_scores_are_standard_normal(name: str) -> None:
    # More than 8.5% of 600 right pools below 0.05, or 3% below 0.01, have chances below 3e-4 each; at twice the
    # level, 90%.
    rng = np.random.default_rng(list(name.encode()))
    pools = [_pool(FAMILIES[name], rng) for _ in range(600)]
    p_values = np.array([pool.outcome().p_value for pool in pools])
    assert (p_values < 0.05).mean() < 0.085
    assert (p_values < 0.01).mean() < 0.03
    if name in CONTINUOUS:
        assert stats.kstest(p_values, "uniform").pvalue > 1e-6
        z = np.array([each.z for pool in pools for each in pool.summaries.values() if isinstance(each, NormalScore)])
        assert len(z) == 4 * 600
        # Standard errors of 2,400 scores: mean 0.020, standard deviation 0.014; five of each.
        assert abs(z.mean()) < 0.10
        assert abs(z.std() - 1.0) < 0.07
    else:
        assert (p_values > 0.9).mean() > 0.06


def test_a_pool_sees_what_its_gap_says() -> None:
    # Scales of three cases, one with few draws: 90% of 1,000 pools of this effect, or its mirror image, are found
    # (standard error 0.01; the logarithm of a scale is not quite normal).
    rng, sizes, level = np.random.default_rng(3), (400, 300, 10), 1e-3

    def pool(ratio: float) -> Pool:
        samples = {str(size): Scale(4).test(ratio * rng.chisquare(4, size)).summary for size in sizes}
        return Pool({key: each for key, each in samples.items() if each is not None})

    mde = pool(1.0).mde(level, 0.9)
    single = Scale(4).mde(400, level, 0.9)
    assert 1.0 < mde < single
    for ratio in (mde, 1.0 / mde):
        found = np.mean([pool(ratio).outcome().p_value < level for _ in range(1000)])
        assert 0.86 < found < 0.94


def test_small_departures_add_up() -> None:
    # Sizes 3% too large in twenty samples, few of them suspicious alone.
    rng = np.random.default_rng(5)
    family = TwoSample(4, unit=1.0)
    outcomes = [
        family.test(np.log(1.03**2 * rng.chisquare(8, 1000)), np.log(rng.chisquare(8, 4000))) for _ in range(20)
    ]
    together = Pool({str(k): each.summary for k, each in enumerate(outcomes) if each.summary is not None}).outcome()
    assert np.median([each.p_value for each in outcomes]) > 1e-3
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
    many = {str(k): Events(30_000, 60_000, 0.5, one_sided=False) for k in range(25)}
    assert Pool(many).outcome().p_value == pytest.approx(1.0)
    far = {**many, "0": Events(33_000, 60_000, 0.5, one_sided=False)}
    exact = 2.0 * stats.binom.sf(24 * 30_000 + 33_000 - 1, 25 * 60_000, 0.5)
    assert Pool(far).outcome().p_value == pytest.approx(exact, rel=1e-3)


def test_counts_are_summed_on_the_side_that_their_family_tests() -> None:
    few = {tail: Count(0.3, tail=tail).test(0, 50).summary for tail in ("upper", "two-sided")}
    pools = {tail: Pool({"a": each, "b": each}) for tail, each in few.items() if each is not None}
    assert pools["upper"].outcome().p_value == pytest.approx(1.0)
    assert pools["upper"].outcome().at_most
    assert pools["two-sided"].outcome().p_value == pytest.approx(2.0 * 0.7**100, rel=1e-6)
    assert not pools["two-sided"].outcome().at_most


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


def test_what_the_null_allows_moves_no_pool() -> None:
    # Cases at their allowance, all on one side: p-values are valid.
    rng = np.random.default_rng(7)
    found = [_pool(FAMILIES["allowance"], rng, 10).outcome().p_value for _ in range(400)]
    assert np.mean(np.array(found) < 0.05) < 0.05
    far = {str(k): Uniform(0.01).test(rng.random(4000) * 0.96).summary for k in range(10)}
    assert Pool({key: each for key, each in far.items() if each is not None}).outcome().p_value < 1e-6


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_record_holds_a_summary(name: str) -> None:
    summary = FAMILIES[name](np.random.default_rng(1))
    assert summary is not None
    assert from_record(to_record(summary)) == summary
    assert len(str(to_record(summary))) < 200


def test_samples_without_information_say_nothing() -> None:
    empty = Pool({"a": NormalScore(0.0, 0.0), "b": NormalScore(0.0, 0.0)})
    assert empty.outcome().p_value == 1.0
    assert empty.mde(1e-3, 0.9) == math.inf
