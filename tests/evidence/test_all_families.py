"""Every family: level, power, intervals, sample size, and pools."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attncheck.evidence.exchange import Calls
from attncheck.evidence.families import Count, Family, Scale, TwoSample, Uniform
from attncheck.evidence.groups import LargestAssociation
from attncheck.evidence.pools import Pool
from attncheck.evidence.summaries import NormalScore, from_record, to_record

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
