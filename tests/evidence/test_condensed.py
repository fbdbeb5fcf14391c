"""Condensed data give the results of all draws: every family, in two or more blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from attncheck._lib.errors import InputError
from attncheck._lib.streams import stream
from attncheck.evidence import exchange, ranks
from attncheck.evidence.blocks import Blocks
from attncheck.evidence.exchange import Calls, Extremes, Repeats, Trend
from attncheck.evidence.families import Association, Count, Family, Outcome, Scale, Smooth, TwoSample, Uniform
from attncheck.evidence.groups import EqualVariances, LargestAssociation, WithinGroups
from attncheck.evidence.orders import Order
from attncheck.evidence.ranks import cells_of
from attncheck.evidence.summaries import NormalScore
from attncheck.looks.look import join

from .alone import Alone

Bounds = Callable[[int, float], tuple[int, int]]
Data = tuple[Any, ...]
Draw = Callable[[np.random.Generator, int, float], Data]

CALL = 100
RUNS = 500


@dataclass(frozen=True)
class Case:
    """A family, and data with an effect, 0 for none."""

    family: Family
    draw: Draw


def squares(rng: np.random.Generator, size: int, wrong: float) -> Data:
    dof = rng.integers(0, 9, size=size)
    return (1.0 + wrong) * rng.chisquare(np.maximum(dof, 1)) * (dof > 0), dof


def alike(rng: np.random.Generator, size: int, wrong: float) -> Data:
    return rng.chisquare(4, (size, 3)) * [1.0, 1.0, 1.0 + wrong], np.full((size, 3), 4.0)


def events(rng: np.random.Generator, size: int, wrong: float) -> Data:
    return int(rng.binomial(size, 0.3 + 0.1 * wrong)), size


def pairs(rng: np.random.Generator, size: int, wrong: float) -> Data:
    weight = rng.standard_t(5, size) * (rng.random(size) < 0.8) * 1e200
    return rng.standard_normal(size) + wrong * weight / 1e200, weight


def columns(rng: np.random.Generator, size: int, wrong: float) -> Data:
    weight = rng.standard_normal((size, 3))
    return rng.standard_normal((size, 3)) + weight * [0.0, wrong, 0.0], weight


def grouped(rng: np.random.Generator, size: int, wrong: float) -> Data:
    group = rng.integers(2, size=size)
    weight = rng.standard_normal(size) + 3.0 * group
    return rng.standard_normal(size) + wrong * (weight - 3.0 * group) + group, weight, group


def uniforms(rng: np.random.Generator, size: int, wrong: float) -> Data:
    return (rng.random(size) ** (1.0 + wrong),)


def logs(rng: np.random.Generator, size: int, wrong: float) -> Data:
    widths = np.array([32.0, 128.0, 512.0])
    return np.log(np.abs(rng.standard_normal((size, 3)))) - (0.5 + wrong) * np.log(widths), widths


def two(rng: np.random.Generator, size: int, wrong: float) -> Data:
    return rng.standard_normal(size) + wrong, rng.standard_normal(4 * size)


def rounded(rng: np.random.Generator, size: int, wrong: float) -> Data:
    ours, theirs = two(rng, size, wrong)
    return np.round(ours, 1).astype(np.float32), np.round(theirs, 1)


def marks(rng: np.random.Generator, size: int, wrong: float) -> Data:
    found = rng.integers(2**63, size=size, dtype=np.uint64)
    return (np.where(rng.random(size) < wrong, found[::-1], found),)


def calls(rng: np.random.Generator, size: int, wrong: float) -> Data:
    shifts = np.repeat(rng.standard_normal(size // CALL), CALL)
    return np.exp(rng.standard_normal(size) + wrong * shifts), np.full(size // CALL, CALL)


def trend(rng: np.random.Generator, size: int, wrong: float) -> Data:
    place = np.tile(np.linspace(-1.0, 1.0, CALL), size // CALL)
    return np.round(np.exp(rng.standard_normal(size) + wrong * place), 1), np.full(size // CALL, CALL)


def sides(rng: np.random.Generator, size: int, wrong: float) -> Data:
    reach = rng.standard_normal((size, 2))
    reach[rng.random(size) < 0.01 * wrong] = 5.0
    return reach, np.full(size // CALL, CALL)


# Families that use sums, cells, and ranks among the first draws.
SUMS = {
    "scale": Case(Scale(4), squares),
    "alike": Case(EqualVariances(3, 4), alike),
    "count": Case(Count(0.3, tail="two-sided"), events),
    "association": Case(Association(), pairs),
    "within": Case(WithinGroups(2), grouped),
    "largest": Case(LargestAssociation(columns=3), columns),
    "smooth": Case(Smooth(2), uniforms),
    "order": Case(Order(-0.5), logs),
    "repeats": Case(Repeats(), marks),
    "extremes": Case(Extremes(), sides),
    "blocks": Case(Blocks(Scale(4), 4), two),
}
DISTANCES = {
    "uniform": Case(Uniform(), uniforms),
    "allowed": Case(Uniform(allowance=0.02), uniforms),
    "two": Case(TwoSample(4, unit=10.0), two),
    "logarithms": Case(TwoSample(4, unit=1.0), two),
    "rounded": Case(TwoSample(4, unit=10.0), rounded),
}
RANKS = {"calls": Case(Calls(16), calls), "trend": Case(Trend(), trend)}


def concrete(family: type[Any]) -> Iterator[type[Any]]:
    for each in family.__subclasses__():
        if each.__module__.startswith("attncheck."):
            yield each
        yield from concrete(each)


def of_blocks(family: Family, blocks: Sequence[Data]) -> Outcome:
    held = family.condensed(*blocks[0])
    for block in blocks[1:]:
        held.add(*block)
    return held.outcome()


def blocks_of(case: Case, seed: int, sizes: Sequence[int], wrong: float) -> list[Data]:
    rng = stream(seed, "tests", "condensed")
    return [case.draw(rng, size, wrong) for size in sizes]


def test_every_family_is_among_the_cases() -> None:
    tested = {type(case.family) for cases in (SUMS, DISTANCES, RANKS) for case in cases.values()}
    assert set(concrete(Family)) == tested


seeds = st.integers(0, 999)
several = st.lists(st.sampled_from([600, 1000, 3000]), min_size=2, max_size=4)
wrongs = st.sampled_from([0.0, 0.02, 0.3])


@given(st.sampled_from(sorted(SUMS)), seeds, several, wrongs)
def test_sums_stand_for_all_draws(name: str, seed: int, sizes: list[int], wrong: float) -> None:
    case = SUMS[name]
    blocks = blocks_of(case, seed, sizes, wrong)
    whole, found = case.family.test(*join(blocks)), of_blocks(case.family, blocks)
    assert found.count == whole.count
    for field in ("effect", "low", "high"):
        assert getattr(found, field) == pytest.approx(getattr(whole, field), rel=1e-9, abs=1e-12)
    assert found.p_value == pytest.approx(whole.p_value, rel=1e-6)
    assert type(found.summary) is type(whole.summary)
    if isinstance(found.summary, NormalScore) and isinstance(whole.summary, NormalScore):
        assert found.summary.z == pytest.approx(whole.summary.z, rel=1e-6, abs=1e-9)
        assert found.summary.information == pytest.approx(whole.summary.information)
    else:
        assert found.summary == whole.summary


def largest_cell(family: Family, blocks: Sequence[Data]) -> float:
    """Return the largest share of a sample in one cell."""
    if isinstance(family, Uniform):
        return 2.0**-16
    points = np.unique(cells_of(np.concatenate([np.ravel(part) for part in blocks[0]])))
    counts = [np.searchsorted(np.sort(part), points + 4e-5, side="right") for part in join(blocks)]
    ends = [(0, np.size(part)) for part in join(blocks)]
    shares = [np.diff(count, prepend=low, append=high) / high for count, (low, high) in zip(counts, ends, strict=True)]
    return float(max(share.max() for share in shares))


# Of five families each is among 50 examples, but for a chance of 1e-4; of two among 25, but for 1e-7.
@settings(max_examples=50)
@given(st.sampled_from(sorted(DISTANCES)), seeds, several, wrongs)
def test_a_distance_in_cells_is_never_larger_and_at_most_a_cell_smaller(
    name: str, seed: int, sizes: list[int], wrong: float
) -> None:
    case = DISTANCES[name]
    blocks = blocks_of(case, seed, sizes, wrong)
    whole, found = case.family.test(*join(blocks)), of_blocks(case.family, blocks)
    assert found.count == whole.count
    assert found.at_most == whole.at_most
    assert found.p_value >= whole.p_value
    assert whole.effect - largest_cell(case.family, blocks) - 1e-12 <= found.effect <= whole.effect
    assert isinstance(found.summary, NormalScore)
    assert isinstance(whole.summary, NormalScore)
    assert found.summary.z == pytest.approx(whole.summary.z, rel=0.03, abs=0.3)
    assert found.summary.information == pytest.approx(whole.summary.information, rel=0.15)
    assert found.plot is None  # cells are too coarse for tails


@settings(max_examples=25)
@given(st.sampled_from(sorted(RANKS)), seeds, several, wrongs)
def test_ranks_among_the_first_draws_are_nearly_those_among_all(
    name: str, seed: int, sizes: list[int], wrong: float
) -> None:
    case = RANKS[name]
    blocks = blocks_of(case, seed, sizes, wrong)
    whole, found = case.family.test(*join(blocks)), of_blocks(case.family, blocks)
    assert found.count == whole.count
    # Ranks among m draws are off by at most about 1/√m of their spread.
    noise = (whole.high - whole.low) / 5.0
    assert abs(found.effect - whole.effect) < 10.0 * (abs(whole.effect) + noise) / sizes[0] ** 0.5
    assert found.high - found.low == pytest.approx(whole.high - whole.low, rel=0.3)


def skewed(rng: np.random.Generator, size: int, wrong: float) -> Data:
    ours, theirs = (np.round(np.maximum(rng.exponential(size=k * size) - 0.3, 0.0), 2) for k in (1, 4))
    return ours + wrong, theirs


def p_of_score(outcome: Outcome) -> float:
    assert isinstance(outcome.summary, NormalScore)
    return 2.0 * float(special.ndtr(-abs(outcome.summary.z)))


def p_value(outcome: Outcome) -> float:
    return outcome.p_value


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("case", "p", "exact"),
    [
        (Case(Alone(16), calls), p_value, True),
        (RANKS["trend"], p_value, True),
        (Case(TwoSample(4), skewed), p_of_score, True),
        (Case(TwoSample(4), skewed), p_value, False),
    ],
    ids=["calls", "trend", "rank score", "two"],
)
def test_false_alarms_are_as_often_as_stated_however_few_the_cells(
    monkeypatch: pytest.MonkeyPatch, bounds: Bounds, case: Case, p: Callable[[Outcome], float], exact: bool
) -> None:
    monkeypatch.setattr(ranks, "_CELLS", 32)
    rng = stream(0, "tests", "condensed null")
    found = np.array(
        [p(of_blocks(case.family, [case.draw(rng, size, 0.0) for size in (400, 800, 400)])) for _ in range(RUNS)]
    )
    for level in (0.5, 0.05, 0.01):
        fewest, most = bounds(RUNS, level)
        assert (fewest if exact else 0) <= int((found < level).sum()) <= most


def moved(rng: np.random.Generator, size: int, wrong: float) -> Data:
    return rng.random(size) + wrong, rng.random(4 * size)


def risen(rng: np.random.Generator, size: int, wrong: float) -> Data:
    place = np.tile(np.linspace(-1.0, 1.0, CALL), size // CALL) * np.sqrt(3.0)
    return np.sqrt(1.0 - wrong**2) * rng.standard_normal(size) + wrong * place, np.full(size // CALL, CALL)


def apart(rng: np.random.Generator, size: int, wrong: float) -> Data:
    shifts = rng.permutation(np.repeat(special.ndtri((np.arange(16) + 0.5) / 16), size // 16 // CALL))
    values = np.sqrt(1.0 - wrong) * rng.standard_normal(size) + np.sqrt(wrong) * np.repeat(shifts, CALL) / 0.93
    return values, np.full(size // CALL, CALL)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("case", "alternative", "blocks", "draws"),
    [
        (Case(Uniform(), lambda rng, size, wrong: (np.maximum(rng.random(size), wrong),)), 0.05, 4, None),
        (Case(TwoSample(4), moved), 0.08, 4, None),
        (Case(Trend(), risen), 0.06, 4, None),
        (Case(Alone(64), apart), 0.03, 4, 6400),
    ],
    ids=["uniform", "two", "trend", "calls"],
)
def test_departures_are_seen_as_surely_as_planned(
    bounds: Bounds, case: Case, alternative: float, blocks: int, draws: int | None
) -> None:
    level, power = 0.001, 0.9
    size = draws or case.family.size(alternative, level, power)
    assert size is not None
    planned = case.family.power(alternative, size, level)
    each = -(-size // (blocks * CALL)) * CALL
    rng = stream(0, "tests", "condensed power")
    found = [of_blocks(case.family, [case.draw(rng, each, alternative) for _ in range(blocks)]) for _ in range(RUNS)]
    assert sum(outcome.p_value < level for outcome in found) >= bounds(RUNS, planned)[0]


def test_repeats_are_told_by_the_marks_that_are_remembered(monkeypatch: pytest.MonkeyPatch, bounds: Bounds) -> None:
    monkeypatch.setattr(exchange, "_REMEMBERED", 2**10)
    rng = stream(0, "tests", "condensed repeats")
    blocks = [marks(rng, 2000, 0.0) for _ in range(16)]
    assert of_blocks(Repeats(), blocks).p_value == 1.0
    again = blocks[3][0][:1000]
    held = of_blocks(Repeats(), [*blocks, (again,)])
    whole = Repeats().test(np.concatenate([*(block[0] for block in blocks), again]))
    assert held.count == whole.count
    assert held.p_value == whole.p_value == 0.0
    # One in 32 or 64 of 32,000 marks is kept.
    seen = round(held.effect * held.count)
    assert 0 < seen <= bounds(1000, 1 / 32)[1] < whole.effect * whole.count == 1000


def test_what_is_remembered_of_repeats_is_bounded() -> None:
    rng = stream(0, "tests", "condensed repeats")
    seen = exchange._remembered(*marks(rng, 2**17, 0.0))
    for _ in range(7):
        seen = exchange._merged(seen, exchange._remembered(*marks(rng, 2**17, 0.0)))
        assert 2**16 * 0.9 < len(seen[2]) <= 2**17
    assert seen[0] == 0
    assert seen[1] == 2**20


def test_too_little_is_no_outcome_and_a_bad_number_is_refused() -> None:
    assert Scale(1).condensed(np.zeros(500), np.zeros(500)).outcome() == Scale(1).nothing()
    assert Count(0.1).condensed(0, 0).outcome() == Count(0.1).nothing()
    assert TwoSample().condensed(np.ones(3), np.arange(500.0)).outcome() == TwoSample().nothing()
    assert Smooth(1).condensed(np.full(100, 0.5)).outcome() == Smooth(1).nothing()
    assert Association().condensed(np.ones(500), np.zeros(500)).outcome().count == 0
    with pytest.raises(InputError, match="noise=nan"):
        Association().condensed(np.ones(500), np.ones(500)).add(np.full(500, np.nan), np.ones(500))
