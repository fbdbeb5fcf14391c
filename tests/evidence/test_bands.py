"""Bands have at least the stated coverage, by simulation, at any size, and are not much wider than that."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import hypergeom

from attncheck._lib.arrays import IntArray
from attncheck.evidence.bands import QUANTILES, two_sample_band, uniform_band
from attncheck.evidence.distances import TwoSample, Uniform
from attncheck.evidence.plot_data import Counts

RNG = np.random.default_rng(31)
# For a simulated chance of 1%: exceeded less than once in 10,000 times.
_ERRORS = 4.0


def _kept(below: IntArray, band: tuple[IntArray, IntArray]) -> float:
    """Return the coverage of a band by rows of shape (samples, points)."""
    return float(np.mean(np.all((band[0] <= below) & (below <= band[1]), axis=1)))


def _uniform_counts(count: int, samples: int) -> IntArray:
    steps = RNG.multinomial(count, np.diff(QUANTILES, prepend=0.0, append=1.0), size=samples)
    return np.cumsum(steps, axis=1)[:, :-1]


@pytest.mark.parametrize("count", [50, 500, 20_000])
def test_one_sample_keeps_the_whole_band_with_99_percent(count: int) -> None:
    samples = 40_000
    error = _ERRORS * np.sqrt(0.01 * 0.99 / samples)
    kept = _kept(_uniform_counts(count, samples), uniform_band(count))
    # Points that are close keep and leave the band together, and counts are whole.
    assert 0.99 - error < kept < 0.999


@pytest.mark.parametrize(("ours", "theirs"), [(50, 200), (500, 500), (20_000, 5_000)])
def test_two_samples_keep_the_whole_band_with_99_percent(ours: int, theirs: int) -> None:
    samples, both = 40_000, ours + theirs
    pooled = np.unique(np.clip(np.round(QUANTILES * both).astype(int), 1, both - 1))
    below, left = np.zeros((samples, len(pooled)), dtype=int), np.full(samples, ours)
    for place, (before, rank) in enumerate(itertools.pairwise([0, *pooled])):
        left -= RNG.hypergeometric(left, both - before - left, rank - before)
        below[:, place] = ours - left
    error = _ERRORS * np.sqrt(0.01 * 0.99 / samples)
    assert 0.99 - error < _kept(below, two_sample_band(ours, theirs, tuple(pooled.tolist()))) < 0.999


@pytest.mark.parametrize("allowance", [0.0, 0.02])
@pytest.mark.parametrize("count", [1, 50, 5_000])
def test_band_rises_is_symmetric_and_holds_what_is_declared(count: int, allowance: float) -> None:
    low, high = uniform_band(count, allowance)
    assert np.all(np.diff(low) >= 0)
    assert np.all(np.diff(high) >= 0)
    np.testing.assert_array_equal(high, count - low[::-1])
    assert np.all((low <= np.ceil(count * QUANTILES)) & (np.floor(count * QUANTILES) <= high))
    assert low.min() >= 0


def test_two_samples_are_alike_from_either_side() -> None:
    ranks = (3, 40, 500, 999)
    low, high = two_sample_band(300, 700, ranks)
    again, top = two_sample_band(700, 300, ranks)
    np.testing.assert_array_equal(np.array(ranks) - high, again)
    np.testing.assert_array_equal(np.array(ranks) - low, top)
    tails = hypergeom.cdf(low - 1, 1000, 300, ranks), hypergeom.sf(high, 1000, 300, ranks)
    assert np.max(np.asarray(tails)) <= 0.01 / 8


def test_samples_with_ties_keep_their_band() -> None:
    """Atoms at 0 and 1, each of a third of the law."""
    kept = 0
    for _ in range(300):
        ours, theirs = (np.clip(3.0 * RNG.random(n) - 1.0, 0.0, 1.0) for n in (100, 200))
        plot = TwoSample(ratio=2).test(ours, theirs).plot
        assert isinstance(plot, Counts)
        kept += int(_kept(np.array([plot.below]), two_sample_band(100, 200, tuple(plot.pooled))))
    assert kept >= 290  # 297 at least expected; P(< 290) is below 1e-3


def test_laws_within_the_allowance_keep_its_band() -> None:
    values = np.clip(RNG.random((5_000, 200)) + 0.03, 0.0, 1.0)
    below = np.sum(values[:, :, None] <= QUANTILES, axis=1)
    assert _kept(below, uniform_band(200, 0.03)) > 0.985
    assert _kept(below, uniform_band(200)) < 0.97


def test_a_few_values_far_out_leave_the_band_though_not_the_distance() -> None:
    values = np.concatenate([np.full(6, 1e-5), (np.arange(1994) + 0.5) / 1994])
    outcome = Uniform().test(values)
    assert outcome.p_value > 1e-3
    assert isinstance(outcome.plot, Counts)
    below = np.array(outcome.plot.below)
    _, high = uniform_band(2000)
    assert np.any(below[:8] > high[:8])
    assert np.all(below[20:-20] <= high[20:-20])
