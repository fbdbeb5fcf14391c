"""Bounds on binomial counts, with a stated chance of false alarm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scipy.stats import binom

Bounds = Callable[[int, float], tuple[int, int]]


@pytest.fixture(scope="session")
def bounds() -> Bounds:
    """Return a function (trials, chance) -> (fewest, most), exceeded either way with chance at most 1e-7.

    With some 100 such counts noise fails the suite with chance below 1e-5 for any seed.
    """

    def limits(trials: int, chance: float) -> tuple[int, int]:
        return int(binom.ppf(5e-8, trials, chance)), int(binom.isf(5e-8, trials, chance))

    return limits
