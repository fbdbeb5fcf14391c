"""Computed values: scores by quadrature, and the published estimator against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.paper import exact
from attncheck.paper.units import divergence

Layer = ac.AttentionLayer


@pytest.mark.parametrize(
    "layer", [Layer(width=16), Layer(width=12, head_dim=4, query_std=1.5)], ids=["full", "low rank"]
)
def test_scores_follow_the_mixture(layer: Layer) -> None:
    mixture = exact.score_mixture(layer, 24)
    drawn = ac.simulate(layer.replace(seq_len=1), 40_000).scores[:, 0, 0, 0]

    def uniform(scores: FloatArray) -> FloatArray:
        # Interpolation between 2,001 points errs by at most 1e-4; 40,000 draws resolve 1e-2.
        points = np.linspace(0.0, np.abs(scores).max(), 2001)
        tail = np.interp(np.abs(scores), points, mixture.upper_tail(points))
        return np.where(scores < 0, tail, 1 - tail)

    assert stats.kstest(uniform(drawn), "uniform", method="asymp").pvalue > 1e-5
    wrong = ac.simulate(layer.replace(width=64, seq_len=1), 40_000).scores[:, 0, 0, 0]
    assert stats.kstest(uniform(wrong), "uniform", method="asymp").pvalue < 1e-5


def test_moments_of_scores_are_those_of_the_paper_set_up() -> None:
    n = 256
    variance, kurtosis = exact.score_moments(Layer(width=n), 32)
    rho2, rho4 = 1 + 2 / n, (1 + 2 / n) * (1 + 4 / n) * (1 + 6 / n)
    assert variance == pytest.approx(rho2**2, rel=1e-12)
    assert kurtosis == pytest.approx(3 * (1 + 2 / n) * rho4**2 / rho2**4 - 3, rel=1e-9)


def test_score_difference_integrates_to_nothing_and_falls_as_one_over_n() -> None:
    wide = np.linspace(-12, 12, 1201)
    at = {n: exact.score_difference(Layer(width=n), wide, 24) for n in (256, 1024)}
    assert abs(at[256].sum() * (wide[1] - wide[0])) < 1e-9
    assert np.abs(at[256]).max() / np.abs(at[1024]).max() == pytest.approx(4, rel=0.03)


def samples(name: str, size: int) -> FloatArray:
    rng = stream(0, "kernel densities", name, size)
    if name == "normal":
        return rng.standard_normal(size)
    if name == "heavy":
        return rng.standard_t(3, size)
    return np.concatenate([rng.normal(-3, 0.1, size // 2), rng.normal(50, 4, size - size // 2)])


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_divergence_is_the_published_sum(shift: float) -> None:
    first, second = samples("normal", 3_000) + shift, samples("heavy", 3_000)
    grid = np.linspace(min(first.min(), second.min()), max(first.max(), second.max()), 500)
    p, q = (stats.gaussian_kde(each)(grid) + 1e-12 for each in (first, second))
    expected = (p * np.log(p / q)).sum() * (grid[1] - grid[0])
    assert divergence(first, second) == pytest.approx(expected, abs=1e-6)
