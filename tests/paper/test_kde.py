"""The published estimator is SciPy's, only faster."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attncheck._lib.errors import InputError
from attncheck._lib.streams import stream
from attncheck.paper import kde

FloatArray = NDArray[np.float64]


def samples(name: str, size: int) -> FloatArray:
    rng = stream(0, "kernel densities", name, size)
    if name == "normal":
        return rng.standard_normal(size)
    if name == "heavy":
        return rng.standard_t(3, size)
    return np.concatenate([rng.normal(-3, 0.1, size // 2), rng.normal(50, 4, size - size // 2)])


@pytest.mark.parametrize("name", ["normal", "heavy", "bimodal"])
@pytest.mark.parametrize("size", [20, 3_000])
@pytest.mark.parametrize("points", [2, 181, 500])
def test_density_is_that_of_scipy(name: str, size: int, points: int) -> None:
    values = samples(name, size)
    grid = np.linspace(values.min() - 1, values.max(), points)
    expected = stats.gaussian_kde(values)(grid)
    assert np.abs(kde.density(values, grid) - expected).max() < 1e-6 * stats.gaussian_kde(values)(values).max()


def test_comparison_sees_another_bandwidth() -> None:
    values, grid = samples("normal", 3_000), np.linspace(-3, 3, 181)
    silverman = stats.gaussian_kde(values, "silverman")(grid)
    assert np.abs(kde.density(values, grid) - silverman).max() > 1e-4


def test_samples_outside_the_grid_count_with_their_kernels() -> None:
    values, grid = samples("normal", 400), np.linspace(0.5, 0.6, 5)
    np.testing.assert_allclose(kde.density(values, grid), stats.gaussian_kde(values)(grid), atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_divergence_is_the_published_sum(shift: float) -> None:
    first, second = samples("normal", 3_000) + shift, samples("heavy", 3_000)
    grid = np.linspace(min(first.min(), second.min()), max(first.max(), second.max()), 500)
    p, q = (stats.gaussian_kde(each)(grid) + 1e-12 for each in (first, second))
    expected = (p * np.log(p / q)).sum() * (grid[1] - grid[0])
    assert kde.divergence(first, second)[0] == pytest.approx(expected, abs=1e-6)


def test_part_beyond_the_second_sample() -> None:
    first, second = samples("heavy", 3_000), samples("normal", 3_000)
    whole, beyond = kde.divergence(first, second)
    assert 0 < beyond < whole
    assert beyond > 0.5 * whole
    assert kde.divergence(second, second) == (0.0, 0.0)
    assert kde.divergence(second * 0.1, first)[1] == 0.0


@pytest.mark.parametrize("bad", [np.ones(5), np.array([1.0, np.nan]), np.zeros((2, 2)), np.array([np.inf, 0.0])])
def test_samples_without_a_density_are_refused(bad: FloatArray) -> None:
    with pytest.raises(InputError, match="pass one axis of finite numbers"):
        kde.scott(bad)


@pytest.mark.parametrize("bad", [np.array([0.0]), np.array([0.0, 1.0, 3.0]), np.array([1.0, 0.0]), np.zeros(4)])
def test_uneven_grids_are_refused(bad: FloatArray) -> None:
    with pytest.raises(InputError, match="evenly spaced"):
        kde.density(np.arange(4.0), bad)
