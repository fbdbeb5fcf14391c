"""Statistics of exponents: stated error rates, on simulated sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.arrays import FloatArray
from attncheck.scaling.exponents import exponents, seeds_needed, slope_weights
from attncheck.scaling.predictions import shares
from tests.refusals import refused

WIDTHS = (64, 128, 256, 512, 1024)
N = np.array(WIDTHS, dtype=float)[:, None, None]
TAPS = 100_000
# Seeds of `examine` at each width, by default.
SEEDS = (28, 24, 20, 17, 14)
# About that of a look at some 180 numbers.
LEVEL = 1.4e-3

# Logarithms of root mean squares: of many numbers, and of one, four and sixteen normal ones.
NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], FloatArray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "one": lambda rng, shape: 0.5 * np.log(rng.chisquare(1, shape)),
    "four": lambda rng, shape: 0.5 * np.log(rng.chisquare(4, shape)),
    "sixteen": lambda rng, shape: 0.5 * np.log(rng.chisquare(16, shape)),
}


def few_alarms(p_values: FloatArray, most: float = LEVEL) -> int:
    """Assert that p-values are below the level no more often than `most` says; return how often they are."""
    alarms = int((p_values < LEVEL).sum())
    assert stats.binom.sf(alarms - 1, TAPS, most) > 1e-4
    return alarms


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("counts", [(2,) * 5, (4,) * 5, (8,) * 5, SEEDS], ids=["2", "4", "8", "of examine"])
def test_no_more_false_alarms_than_the_level_says(noise: str, counts: tuple[int, ...]) -> None:
    """Also for one number per tap, whose logarithm is far from normal."""
    rng = np.random.default_rng(0)
    found = exponents([NOISE[noise](rng, (seeds, TAPS)) for seeds in counts], WIDTHS)
    alarms = few_alarms(found.p_values(0.0, 0.0))
    missed = int((np.abs(found.values) > found.half_widths(LEVEL)).sum())
    assert missed == alarms


@pytest.mark.parametrize("spread", [0.05, 0.15])
def test_seeds_that_are_said_to_be_needed_decide(spread: float) -> None:
    rng = np.random.default_rng(3)
    pilot = exponents(spread * rng.standard_normal((5, 100, 1)), WIDTHS)
    seeds = seeds_needed(0.1, float(pilot.errors[0]), float(pilot.freedom[0]), 100, LEVEL)
    assert seeds is not None
    decided = []
    for number in (seeds, seeds // 3):
        found = exponents(spread * rng.standard_normal((5, number, 4_000)), WIDTHS)
        decided.append(float(np.mean(np.abs(found.values) + found.half_widths(LEVEL) < 0.1)))
    assert decided[0] > 0.95 > 0.5 > decided[1]


def test_no_number_of_seeds_decides_at_the_edge() -> None:
    assert seeds_needed(0.0, 0.1, 20.0, 8, LEVEL) is None
    assert seeds_needed(1e-6, 1.0, 20.0, 8, LEVEL) is None


def test_sizes_that_never_differ_are_no_division_by_zero() -> None:
    found = exponents(np.zeros((5, 4, 1)), WIDTHS)
    assert found.p_values(np.array([-0.1]), np.array([0.1]))[0] == 1.0
    assert found.p_values(np.array([0.4]), np.array([0.6]))[0] < 1e-12


@pytest.mark.parametrize("widths", [(64, 128), (64, 64, 128)])
def test_what_is_refused(widths: tuple[int, ...]) -> None:
    refused(lambda: slope_weights(widths), "at least three, all different")


class TestShares:
    def test_of_exact_mixtures(self) -> None:
        """Half at the widest width, and none where only constants are mixed."""
        squares = np.stack([1 + 300 / N, 1 + 300 / N + (1 + 300 / 1024) * N / 1024], axis=-1)[:, :, 0]
        found = shares(np.broadcast_to(0.5 * np.log(squares), (5, 2, 2)), WIDTHS)
        assert found.values == pytest.approx([0.0, 0.5], abs=1e-9)

    def test_no_more_false_alarms_than_the_level_says(self) -> None:
        """Mixtures with the largest allowed share."""
        rng = np.random.default_rng(4)
        squares = 1 + 100 / N + 0.3 / 0.7 * (1 + 100 / 1024) * N / 1024
        found = shares(0.5 * np.log(squares) + 0.05 * rng.standard_normal((5, 8, TAPS)), WIDTHS)
        few_alarms(found.p_values(high=0.3))

    def test_growth_is_seen(self) -> None:
        rng = np.random.default_rng(5)
        growing = 0.5 * np.log((1 + 100 / N) * N) + 0.05 * rng.standard_normal((5, 8, 1_000))
        assert (shares(growing, WIDTHS).p_values(high=0.3) < LEVEL).mean() > 0.995
