"""Condensed data give the results of all draws: every family, in two or more blocks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck._lib.arrays import IntArray
from attncheck._lib.streams import stream
from attncheck.evidence import exchange
from attncheck.evidence.exchange import Calls, Repeats, Trend
from attncheck.evidence.families import Association, Count, Family, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.plot_data import QUANTILES, read_plot, two_sample_band, uniform_band
from attncheck.evidence.ranks import cells_of
from attncheck.evidence.summaries import NormalScore
from attncheck.looks.look import join
from attncheck.records.schema import Result, run_digest
from tests.refusals import refused

from .test_families import CASES, Data, FastCalls, bounds, marks

#: Families that condense draws to cells, and to ranks among the first draws; the others use sums.
CELLS = ("uniform", "uniform, allowance", "two samples", "two logarithms", "two rounded")
RANKS: dict[str, Family] = {"calls": Calls(16), "trend": Trend(), "trend of pairs": Trend()}
SUMS = sorted(CASES.keys() - {*CELLS, *RANKS})


def concrete(family: type[Any]) -> Iterator[type[Any]]:
    for subclass in family.__subclasses__():
        if subclass.__module__.startswith("attncheck."):
            yield subclass
        yield from concrete(subclass)


def of_blocks(family: Family, blocks: Sequence[Data]) -> Outcome:
    data = family.condensed(*blocks[0])
    for block in blocks[1:]:
        data.add(*block)
    return data.outcome()


def blocks_of(name: str, seed: int, sizes: Sequence[int], effect: float) -> list[Data]:
    rng = stream(seed, "tests", "condensed")
    return [CASES[name].draw(rng, size, effect) for size in sizes]


def effect_of(name: str, departed: bool) -> float:
    case = CASES[name]
    return case.alternatives[0][0] if departed and case.alternatives else case.family.null_effect


def test_every_family_is_among_the_cases() -> None:
    assert {*concrete(Family)} == {type(case.family) for case in CASES.values()} - {FastCalls} | {Calls}


seeds = st.integers(0, 999)
several = st.lists(st.sampled_from([600, 1000, 3000]), min_size=2, max_size=4)


@pytest.mark.parametrize("name", SUMS)
@settings(max_examples=5)
@given(seeds, several, st.booleans())
def test_sums_stand_for_all_draws(name: str, seed: int, sizes: list[int], departed: bool) -> None:
    family, blocks = CASES[name].family, blocks_of(name, seed, sizes, effect_of(name, departed))
    whole, condensed = family.test(*join(blocks)), of_blocks(family, blocks)
    assert condensed.count == whole.count
    for field in ("effect", "low", "high"):
        assert getattr(condensed, field) == pytest.approx(getattr(whole, field), rel=1e-9, abs=1e-12)
    assert condensed.p_value == pytest.approx(whole.p_value, rel=1e-6)
    assert type(condensed.summary) is type(whole.summary)
    if isinstance(condensed.summary, NormalScore) and isinstance(whole.summary, NormalScore):
        assert condensed.summary.z == pytest.approx(whole.summary.z, rel=1e-6, abs=1e-9)
        assert condensed.summary.information == pytest.approx(whole.summary.information)
    else:
        assert condensed.summary == whole.summary


def largest_cell(family: Family, blocks: Sequence[Data]) -> float:
    """Return the largest share of a sample in one cell."""
    if isinstance(family, Uniform):
        return 2.0**-16
    points = np.unique(cells_of(np.concatenate([np.ravel(part) for part in blocks[0]])))
    counts = [np.searchsorted(np.sort(part), points + 4e-5, side="right") for part in join(blocks)]
    ends = [(0, np.size(part)) for part in join(blocks)]
    shares = [np.diff(count, prepend=low, append=high) / high for count, (low, high) in zip(counts, ends, strict=True)]
    return float(max(share.max() for share in shares))


@pytest.mark.parametrize("name", CELLS)
@settings(max_examples=5)
@given(seeds, several, st.booleans())
def test_a_distance_in_cells_is_never_larger_and_at_most_a_cell_smaller(
    name: str, seed: int, sizes: list[int], departed: bool
) -> None:
    family, blocks = CASES[name].family, blocks_of(name, seed, sizes, effect_of(name, departed))
    whole, condensed = family.test(*join(blocks)), of_blocks(family, blocks)
    assert condensed.count == whole.count
    assert condensed.at_most == whole.at_most
    assert condensed.p_value >= whole.p_value
    assert whole.effect - largest_cell(family, blocks) - 1e-12 <= condensed.effect <= whole.effect
    assert isinstance(condensed.summary, NormalScore)
    assert isinstance(whole.summary, NormalScore)
    assert condensed.summary.z == pytest.approx(whole.summary.z, rel=0.03, abs=0.3)
    assert condensed.summary.information == pytest.approx(whole.summary.information, rel=0.15)
    assert condensed.plot is None  # cells are too coarse for tails


def test_repeats_are_told_by_the_marks_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_REMEMBERED", 2**10)
    rng = stream(0, "tests", "condensed repeats")
    blocks = [marks(rng, 2000, 0.0) for _ in range(16)]
    assert of_blocks(Repeats(), blocks).p_value == 1.0
    again = blocks[3][0][:1000]
    data = of_blocks(Repeats(), [*blocks, (again,)])
    whole = Repeats().test(np.concatenate([*(block[0] for block in blocks), again]))
    assert data.count == whole.count
    assert data.p_value == whole.p_value == 0.0
    # One in 32 or 64 of 32,000 marks is kept.
    repeats = round(data.effect * data.count)
    assert 0 < repeats <= bounds(1000, 1 / 32)[1] < whole.effect * whole.count == 1000
    remembered = exchange._remembered(*blocks[0])
    for block in blocks[1:]:
        remembered = exchange._merged(remembered, exchange._remembered(*block))
        assert 2**9 * 0.7 < len(remembered[2]) <= 2**10
    assert remembered[:2] == (0, 32_000)


def test_too_little_is_no_outcome_and_a_bad_number_is_refused() -> None:
    assert Scale(1).condensed(np.zeros(500), np.zeros(500)).outcome() == Scale(1).nothing()
    assert Count(0.1).condensed(0, 0).outcome() == Count(0.1).nothing()
    assert TwoSample().condensed(np.ones(3), np.arange(500.0)).outcome() == TwoSample().nothing()
    assert Smooth(1).condensed(np.full(100, 0.5)).outcome() == Smooth(1).nothing()
    assert Association().condensed(np.ones(500), np.zeros(500)).outcome().count == 0
    data = Association().condensed(np.ones(500), np.ones(500))
    refused(lambda: data.add(np.full(500, np.nan), np.ones(500)), "noise=nan")


# Bands have at least the stated coverage at any size, and are not much wider; plots are small -----


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
