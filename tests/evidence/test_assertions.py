"""Assertions about random draws: both error rates, refusals and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck.evidence import Count, Evidence

Assertion = Callable[[Evidence, Any], None]


def law(evidence: Evidence, draw: Any) -> None:
    evidence.assert_law(draw, scipy.stats.norm(), effect=0.1)


def scale(evidence: Evidence, draw: Any) -> None:
    evidence.assert_scale(draw, std=0.5, effect=0.1)


def independent(evidence: Evidence, draw: Any) -> None:
    evidence.assert_independent(draw, effect=0.2)


def normal(std: float = 1.0, mean: float = 0.0) -> Callable[..., Any]:
    return lambda rng, size: mean + std * rng.standard_normal(size)


def pairs(correlation: float) -> Callable[..., Any]:
    def draw(rng: np.random.Generator, size: int) -> tuple[Any, Any]:
        x, noise = rng.standard_normal((2, size))
        return x, correlation * x + (1.0 - correlation**2) ** 0.5 * noise

    return draw


def parabola(rng: np.random.Generator, size: int) -> tuple[Any, Any]:
    x = rng.standard_normal(size)
    return x, x * x


def failures(examine: Assertion, draw: Any, runs: int, alpha: float) -> int:
    """Return how many independent budgets end with a failed assertion."""
    failed = 0
    for seed in range(runs):
        try:
            examine(Evidence(seed, alpha=alpha), draw)
        except AssertionError:
            failed += 1
    return failed


NULLS = [(law, normal()), (scale, normal(0.5)), (independent, pairs(0.0))]


@pytest.mark.sampled
@pytest.mark.parametrize(("examine", "draw"), NULLS)
def test_false_alarms_stay_within_the_share(examine: Assertion, draw: Any, bounds: Any) -> None:
    # The first assertion gets half of the budget; noise fails this with chance below 1e-7.
    assert failures(examine, draw, runs=1000, alpha=0.3) <= bounds(1000, 0.15)[1]


@pytest.mark.sampled
@pytest.mark.parametrize(("examine", "draw"), NULLS)
def test_false_alarms_of_samples_stay_within_the_share(examine: Assertion, draw: Any, bounds: Any) -> None:
    failed = 0
    for seed in range(1000):
        try:
            examine(Evidence(seed, alpha=0.3), draw(np.random.default_rng([seed, 1]), 3000))
        except AssertionError:
            failed += 1
    assert failed <= bounds(1000, 0.15)[1]


# Distance of a normal law with shifted mean m is 2Φ(m/2) − 1, .1 at m = .2513; normal pairs with rank correlation .2.
ALTERNATIVES = [
    (law, normal(mean=0.2514)),
    (scale, normal(0.55)),
    (scale, normal(0.5 / 1.1)),
    (independent, pairs(0.2 * (np.pi / 3.0) ** 0.5)),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("examine", "draw"), ALTERNATIVES)
def test_stated_effects_are_found(examine: Assertion, draw: Any, bounds: Any) -> None:
    assert failures(examine, draw, runs=400, alpha=1e-6) >= bounds(400, 0.99)[0]


WRONG = [
    (
        lambda evidence, draw: evidence.assert_law(draw, scipy.stats.norm(), 0.02),
        lambda rng, size: rng.standard_t(5, size),
    ),
    (independent, parabola),
]


@pytest.mark.parametrize(("examine", "draw"), WRONG)
def test_wrong_laws_are_found(examine: Assertion, draw: Any, bounds: Any) -> None:
    assert failures(examine, draw, runs=20, alpha=1e-6) >= bounds(20, 0.99)[0]


def test_a_budget_of_many_assertions_adds_up(bounds: Any) -> None:
    def all_of_them(evidence: Evidence, draw: Any) -> None:
        for _ in range(4):
            scale(evidence, draw)

    assert failures(all_of_them, normal(0.5), runs=500, alpha=0.3) <= bounds(500, 0.3)[1]


def test_the_message_has_units_level_draws_and_replay() -> None:
    evidence = Evidence(seed=3)
    with pytest.raises(AssertionError) as caught:
        evidence.assert_scale(normal(0.03), std=0.02, effect=0.05)
    first, second, third = str(caught.value).splitlines()
    assert first.startswith("violated: standard deviation 0.0")
    assert "expected 0.02 (chance of a false alarm at most 5e-07)" in first
    assert second.startswith("assertion 1: p = ")
    assert second.endswith(f"per look, {evidence.assertions[0].draws:,} draws")
    assert third == "repeat with Evidence(seed=3, alpha=1e-06, power=0.99, name='')"
    assert evidence.summary() == "1 assertion, violated: 1 (chance of any false alarm at most 1e-06)"


def test_assertions_repeat() -> None:
    once, again = Evidence(seed=1), Evidence(seed=1)
    scale(once, normal(0.5))
    scale(again, normal(0.5))
    assert once.assertions == again.assertions


def test_small_samples_are_refused_with_the_number_needed() -> None:
    with pytest.raises(InputError, match=r"^draw=100: draws are too few to find this effect; pass at least [\d,]+$"):
        scale(Evidence(), np.random.default_rng(0).standard_normal(100))


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (lambda rng, size: rng.standard_normal((size, 2)), "must have the shape"),
        (lambda rng, size: rng.standard_normal(size + 1), "must have the shape"),
        (lambda rng, size: np.full(size, np.nan), "must be finite"),
        (lambda rng, size: np.zeros(size), "is the value of all draws"),
        (lambda rng, size: np.random.default_rng().standard_normal(size), "differs between calls"),
        (lambda rng, size: ["a"] * size, "must hold real numbers"),
    ],
)
def test_bad_draws_are_refused(draw: Any, problem: str) -> None:
    with pytest.raises(InputError, match=f"^draw=.*{problem}"):
        scale(Evidence(), draw)


def test_bad_arguments_are_refused() -> None:
    evidence, draw = Evidence(), normal()
    with pytest.raises(InputError, match=r"^law=.*is discrete"):
        evidence.assert_law(draw, scipy.stats.poisson(3.0), effect=0.1)
    with pytest.raises(InputError, match=r"^law=.*no distribution function"):
        evidence.assert_law(draw, 3.0, effect=0.1)
    with pytest.raises(InputError, match=r"^law="):
        evidence.assert_scale(draw, std=1.0, effect=0.1, law="uniform")
    with pytest.raises(InputError, match=r"^effect=.*draws per look"):
        evidence.assert_law(draw, scipy.stats.norm(), effect=1e-4)
    with pytest.raises(InputError, match=r"^draw=.*must give x and y"):
        evidence.assert_independent(draw, effect=0.1)
    with pytest.raises(InputError, match=r"^alpha="):
        Evidence(alpha=0.0)
    with pytest.raises(InputError, match=r"^power="):
        Evidence(power=1.0)
    assert evidence.assertions == []


def test_a_statistic_of_ones_own_is_tested_by_a_family(bounds: Any) -> None:
    def sixes(evidence: Evidence, draw: Any) -> None:
        def counted(values: NDArray[np.float64]) -> tuple[int, int]:
            return int((values == 6).sum()), len(values)

        evidence.assert_statistic(draw, Count(1 / 6, tail="two-sided"), counted, 1 / 5, "share of sixes")

    def rolls(share: float) -> Any:
        others = [(1.0 - share) / 5] * 5
        return lambda rng, size: rng.choice(np.arange(1.0, 7.0), size, p=[*others, share])

    assert failures(sixes, rolls(1 / 6), runs=1000, alpha=0.3) <= bounds(1000, 0.15)[1]
    assert failures(sixes, rolls(1 / 5), runs=200, alpha=1e-6) >= bounds(200, 0.99)[0]


@pytest.mark.parametrize("law", [lambda values: 0.5, scipy.stats.t, scipy.stats.norm(loc=[0.0, 1.0])])
def test_laws_that_do_not_map_draws_are_refused(law: Any) -> None:
    with pytest.raises(InputError, match="law="):
        Evidence().assert_law(normal(), law, 0.1)
