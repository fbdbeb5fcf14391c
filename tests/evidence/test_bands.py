"""Bands have at least the stated coverage at any size, and are not much wider; plots are small."""

from __future__ import annotations

import itertools
import json

import msgspec
import numpy as np
import pytest

from attncheck._lib.arrays import IntArray
from attncheck.evidence.distances import TwoSample, Uniform
from attncheck.evidence.plot_data import QUANTILES, read_plot, two_sample_band, uniform_band
from attncheck.records.schema import Result, run_digest

RNG = np.random.default_rng(31)
SAMPLES = 40_000
# Of a simulated coverage of 99%: exceeded less than once in 10,000 times.
ERROR = 4.0 * np.sqrt(0.01 * 0.99 / SAMPLES)


def coverage(below: IntArray, band: tuple[IntArray, IntArray]) -> float:
    """Return the coverage of a band by rows of shape (samples, points)."""
    return float(np.mean(np.all((band[0] <= below) & (below <= band[1]), axis=1)))


def two_samples(ours: int, theirs: int) -> tuple[IntArray, tuple[IntArray, IntArray]]:
    both = ours + theirs
    pooled = np.unique(np.clip(np.round(QUANTILES * both).astype(int), 1, both - 1))
    below, remaining = np.zeros((SAMPLES, len(pooled)), dtype=int), np.full(SAMPLES, ours)
    for index, (before, rank) in enumerate(itertools.pairwise([0, *pooled])):
        remaining -= RNG.hypergeometric(remaining, both - before - remaining, rank - before)
        below[:, index] = ours - remaining
    return below, two_sample_band(ours, theirs, tuple(pooled.tolist()))


@pytest.mark.parametrize("counts", [(50,), (500,), (20_000,), (50, 200), (500, 500), (20_000, 5_000)])
def test_samples_stay_within_the_whole_band_with_99_percent(counts: tuple[int, ...]) -> None:
    if len(counts) == 1:
        steps = RNG.multinomial(*counts, np.diff(QUANTILES, prepend=0.0, append=1.0), size=SAMPLES)
        below, band = np.cumsum(steps, axis=1)[:, :-1], uniform_band(*counts)
    else:
        below, band = two_samples(*counts)
    # Points that are close keep and leave the band together, and counts are whole.
    assert 0.99 - ERROR < coverage(below, band) < 0.999


def test_plots_are_small_and_plain_and_have_no_say_in_equality_and_digest() -> None:
    uniform = Uniform().test(RNG.random(9999))
    two = [TwoSample().test(RNG.random(size), RNG.random(other)) for size, other in ((50, 50), (2000, 8000))]
    for outcome, most in zip((uniform, *two), (600, 600, 700), strict=True):
        plot = msgspec.to_builtins(outcome.plot)
        assert json.loads(json.dumps(plot)) == plot
        assert read_plot(plot) == outcome.plot
        assert len(msgspec.json.encode(plot)) < most
    assert hash(uniform) == hash(uniform)
    fields = {name: None for name in Result.__struct_fields__}
    result = msgspec.structs.replace(Result(**fields), id="a", case={})  # type: ignore[arg-type]  # mixed values
    assert run_digest([result]) == run_digest([msgspec.structs.replace(result, plot={"kind": "counts"})])
