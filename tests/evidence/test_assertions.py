"""Assertions about random draws: both error rates, refusals and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck.evidence import Count, Evidence

from .test_families import bounds

Assertion = Callable[[Evidence, Any], None]


STANDARD_NORMAL = scipy.stats.norm()


def law(evidence: Evidence, draw: Any) -> None:
    evidence.assert_law(draw, STANDARD_NORMAL, effect=0.1)


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


def heavy_tailed(rng: np.random.Generator, size: int) -> Any:
    return rng.standard_t(5, size)


def failures(examine: Assertion, draw: Any, runs: int, alpha: float, size: int = 0) -> int:
    """Return how many independent budgets end with a failed assertion, about arrays if a size is given."""
    failed = 0
    for seed in range(runs):
        try:
            examine(Evidence(seed, alpha=alpha), draw(np.random.default_rng([seed, 1]), size) if size else draw)
        except AssertionError:
            failed += 1
    return failed


# Looks and arrays divide the level differently, and two statistics differently from one.
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("examine", "draw", "size"),
    [(scale, normal(0.5), 0), (independent, pairs(0.0), 0), (independent, pairs(0.0), 1000), (law, normal(), 3000)],
)
def test_false_alarms_stay_within_the_share(examine: Assertion, draw: Any, size: int) -> None:
    # The first assertion gets half of the budget; noise fails this with chance below 1e-7.
    assert failures(examine, draw, 500, 0.3, size) <= bounds(500, 0.15)[1]


# Distance of a normal law with shifted mean m is 2Φ(m/2) − 1, .1 at m = .2513; normal pairs with rank correlation .2.
ALTERNATIVES = [
    (law, normal(mean=0.2514), 400),
    (scale, normal(0.55), 400),
    (scale, normal(0.5 / 1.1), 400),
    (independent, pairs(0.2 * (np.pi / 3.0) ** 0.5), 400),
    (lambda evidence, draw: evidence.assert_law(draw, STANDARD_NORMAL, 0.02), heavy_tailed, 10),
    (independent, parabola, 20),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("examine", "draw", "runs"), ALTERNATIVES)
def test_stated_effects_and_wrong_laws_are_found(examine: Assertion, draw: Any, runs: int) -> None:
    assert failures(examine, draw, runs, alpha=1e-6) >= bounds(runs, 0.99)[0]


def p_values(evidence: Evidence, draw: Any) -> None:
    evidence.assert_p_values(lambda seed: draw(np.random.default_rng(seed)))


def test_p_values_of_true_nulls_keep_their_share() -> None:
    def uniform(rng: np.random.Generator) -> tuple[dict[str, float], dict[str, float]]:
        return {"one": rng.uniform(), "other": rng.uniform()}, {}

    level = (0.5 * 0.15 / 2) ** (1 / 3)
    low, high = bounds(1000, 1.0 - (1.0 - 2.0 * level**3 + level**4) ** 2)
    assert low <= failures(p_values, uniform, 1000, 0.3) <= high


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (1e-5, 1e-9, "violated: mean: p = 1e-05, 1e-05, 1e-05"),
        (0.5, 0.1, "violated: not rejected: other mean \\(p = 0.1\\)"),
    ],
)
def test_p_values_of_false_nulls_and_of_wrong_ones_that_pass_are_found(
    right: float, wrong: float, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        p_values(Evidence(), lambda rng: ({"mean": right}, {"other mean": wrong}))


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
    again = Evidence(seed=3)
    with pytest.raises(AssertionError):
        again.assert_scale(normal(0.03), std=0.02, effect=0.05)
    assert again.assertions == evidence.assertions
    assert evidence.summary() == "1 assertion, violated: 1 (chance of any false alarm at most 1e-06)"


def test_a_statistic_of_ones_own_is_tested_by_a_family() -> None:
    def sixes(evidence: Evidence, draw: Any) -> None:
        def counted(values: FloatArray) -> tuple[int, int]:
            return int((values == 6).sum()), len(values)

        evidence.assert_statistic(draw, Count(1 / 6, tail="two-sided"), counted, 1 / 5, "share of sixes")

    def rolls(share: float) -> Any:
        others = [(1.0 - share) / 5] * 5
        return lambda rng, size: rng.choice(np.arange(1.0, 7.0), size, p=[*others, share])

    # The level is shared with the assertions above: a wrong null fails at once.
    assert failures(sixes, rolls(1 / 6), runs=50, alpha=0.3) <= bounds(50, 0.15)[1]
    assert failures(sixes, rolls(1 / 5), runs=50, alpha=1e-6) >= bounds(50, 0.99)[0]
