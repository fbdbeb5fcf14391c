"""The published estimator is SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.paper import kde


def samples(name: str, size: int) -> FloatArray:
    rng = stream(0, "kernel densities", name, size)
    if name == "normal":
        return rng.standard_normal(size)
    if name == "heavy":
        return rng.standard_t(3, size)
    return np.concatenate([rng.normal(-3, 0.1, size // 2), rng.normal(50, 4, size - size // 2)])


def test_comparison_sees_another_bandwidth() -> None:
    values, grid = samples("normal", 3_000), np.linspace(-3, 3, 181)
    silverman = stats.gaussian_kde(values, "silverman")(grid)
    assert np.abs(kde.density(values, grid) - silverman).max() > 1e-4


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_divergence_is_the_published_sum(shift: float) -> None:
    first, second = samples("normal", 3_000) + shift, samples("heavy", 3_000)
    grid = np.linspace(min(first.min(), second.min()), max(first.max(), second.max()), 500)
    p, q = (stats.gaussian_kde(each)(grid) + 1e-12 for each in (first, second))
    expected = (p * np.log(p / q)).sum() * (grid[1] - grid[0])
    assert kde.divergence(first, second) == pytest.approx(expected, abs=1e-6)
