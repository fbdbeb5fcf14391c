"""Every family: level, power, intervals, sample size, and pools."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attncheck.evidence.exchange import Calls
from attncheck.evidence.families import Count, Family, Scale, TwoSample, Uniform
from attncheck.evidence.groups import LargestAssociation
from attncheck.evidence.pools import CLIP, Pool
from attncheck.evidence.summaries import Events, NormalScore, from_record, normal_score, to_record

from .families import CASES, bounds, pool_of

NULL, DEPARTED = 2400, 1000
LEVEL, POWER = 5e-4, 0.99
ALTERNATIVES = [(name, *alternative) for name, case in CASES.items() for alternative in case.alternatives]


@pytest.mark.sampled
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


@pytest.mark.sampled
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
