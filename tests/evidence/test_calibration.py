"""Null calibration, power and interval coverage of every family, by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from attncheck._lib.streams import stream
from attncheck.evidence.families import Association, Count, Family, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import LargestAssociation

Bounds = Callable[[int, float], tuple[int, int]]
Draw = Callable[[np.random.Generator, float, int], Outcome]
REPLICATIONS, DEPARTED = 2000, 1000


@dataclass(frozen=True)
class Case:
    """A family, one outcome from data with a given true effect, and where to look at it."""

    family: Family
    draw: Draw
    size: int  # draws, under the null
    alternatives: tuple[tuple[float, int], ...]  # (true effect, draws)
    exact: bool = True  # uniform p-values, or only valid ones
    bound: bool = False  # whether power is a lower bound


def atom(rng: np.random.Generator, distance: float, shape: int) -> np.ndarray:
    """Return uniform values with the mass of an interval of length `distance` moved to its left end.

    One atom in the middle is the hardest case at that distance from uniform.
    """
    values = rng.random(shape)
    start = 0.5 * (1.0 - distance)
    return np.where((values > start) & (values <= start + distance), start, values)


def scale(rng: np.random.Generator, ratio: float, size: int) -> Outcome:
    dof = rng.integers(1, 16, size=size)
    dof[: size // 2] = 16 - dof[size - size // 2 :]
    return Scale(dof=8).test(ratio * rng.chisquare(dof), dof)


def association(rng: np.random.Generator, correlation: float, size: int) -> Outcome:
    weight = rng.standard_t(8, size=(size, 4))
    noise = math.sqrt(1.0 - correlation**2) * rng.standard_normal((size, 4))
    return Association(per_draw=4).test(noise + correlation * weight / math.sqrt(8 / 6), weight)


def dependent_weight(rng: np.random.Generator, correlation: float, size: int) -> Outcome:
    """Shared weights, mostly zero, as behind a mask."""
    weight = np.cumsum(rng.standard_cauchy((size, 4)), axis=0) * (rng.random((size, 4)) < 0.2)
    return Association(per_draw=4).test(rng.standard_normal((size, 4)), weight)


def largest(rng: np.random.Generator, correlation: float, size: int) -> Outcome:
    """Columns with shared weights, at most one of them tied."""
    weight = np.repeat(rng.standard_t(8, size=(4 * size, 1)) / math.sqrt(8 / 6), 30, axis=1)
    noise = rng.standard_normal((4 * size, 30))
    noise[:, 7] = math.sqrt(1.0 - correlation**2) * noise[:, 7] + correlation * weight[:, 7]
    return LargestAssociation(per_draw=4, columns=30).test(noise, weight)


def uniform(allowance: float) -> Draw:
    return lambda rng, distance, size: Uniform(allowance).test(atom(rng, distance, size))


def smooth(order: int) -> Draw:
    def draw(rng: np.random.Generator, mean: float, size: int) -> Outcome:
        # Rejection sampling of the density 1 + mean·φ_k, whose component is `mean`.
        top = 1.0 + abs(mean) * math.sqrt(2 * order + 1)
        values, heights = rng.random(2 * size), top * rng.random(2 * size)
        shape = math.sqrt(2 * order + 1) * np.polynomial.legendre.legval(2 * values - 1, [0] * order + [1])
        return Smooth(order).test(values[heights < 1.0 + mean * shape][:size])

    return draw


def two_sample(rng: np.random.Generator, distance: float, size: int) -> Outcome:
    return TwoSample(ratio=3).test(atom(rng, distance, size), rng.random(3 * size))


def count(family: Count) -> Draw:
    def draw(rng: np.random.Generator, chance: float, size: int) -> Outcome:
        trials = size * family.per_draw
        return family.test(int(rng.binomial(trials, chance)), trials)

    return draw


RARE, BOTH = Count(0.002, per_draw=2), Count(0.3, tail="two-sided")
CASES = {
    "scale": Case(Scale(dof=8), scale, 10, ((1.4, 60), (1 / 1.4, 60), (1.1, 800))),
    "association": Case(Association(per_draw=4), association, 25, ((0.1, 400), (-0.1, 300), (0.03, 4000))),
    "association, dependent weight": Case(Association(per_draw=4), dependent_weight, 25, ()),
    "largest of 30": Case(LargestAssociation(4, 30), largest, 25, ((0.2, 125), (-0.2, 160)), exact=False, bound=True),
    "uniform": Case(Uniform(), uniform(0.0), 200, ((0.1, 900), (0.1, 700), (0.4, 60)), bound=True),
    "uniform, allowance": Case(Uniform(0.02), uniform(0.02), 500, ((0.08, 2000), (0.12, 800)), exact=False, bound=True),
    "smooth 1": Case(Smooth(1), smooth(1), 500, ((0.1, 2000), (-0.1, 1500))),
    "smooth 2": Case(Smooth(2), smooth(2), 500, ((0.08, 3000), (-0.08, 2500))),
    "smooth 3": Case(Smooth(3), smooth(3), 500, ((0.1, 2000),)),
    "smooth 4": Case(Smooth(4), smooth(4), 500, ((0.05, 6000), (-0.05, 8000))),
    "two samples": Case(TwoSample(ratio=3), two_sample, 200, ((0.1, 1200), (0.3, 120)), exact=False, bound=True),
    "count, upper": Case(RARE, count(RARE), 700, ((0.01, 700), (0.006, 2000)), exact=False),
    "count, two-sided": Case(BOTH, count(BOTH), 200, ((0.4, 400), (0.2, 300), (0.35, 2000)), exact=False),
}
POWER_CASES = [(name, alternative, size) for name, case in CASES.items() for alternative, size in case.alternatives]


def outcomes(name: str, effect: float, size: int, replications: int, role: str) -> list[Outcome]:
    rng = stream(0, "tests", name, effect, size, role=role)
    return [CASES[name].draw(rng, effect, size) for _ in range(replications)]


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_null_p_values_are_uniform_or_conservative(name: str, bounds: Bounds) -> None:
    case = CASES[name]
    found = outcomes(name, case.family.null_effect, case.size, REPLICATIONS, "null")
    p_values = np.array([outcome.p_value for outcome in found])
    assert case.family.continuous == case.exact
    for level in (0.05, 0.01, 0.001):
        fewest, most = bounds(REPLICATIONS, level)
        alarms = int((p_values < level).sum())
        assert alarms <= most
        assert not case.exact or alarms >= fewest
    if case.exact:
        assert Uniform().test(p_values).p_value > 1e-7


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "alternative", "size"), POWER_CASES)
def test_power_is_what_simulation_finds_and_intervals_hold_the_true_effect(
    name: str, alternative: float, size: int, bounds: Bounds
) -> None:
    case, level = CASES[name], 0.005
    found = outcomes(name, alternative, size, DEPARTED, "power")
    detected = sum(outcome.p_value < level for outcome in found)
    fewest, most = bounds(DEPARTED, case.family.power(alternative, size, level))
    assert detected >= fewest
    assert case.bound or detected <= most
    held = sum(outcome.low <= alternative <= outcome.high for outcome in found)
    assert held >= bounds(DEPARTED, 0.99)[0]
