"""Plot data: compact, of built-in types, correct, and without effect on verdicts and digests."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from attncheck.evidence.bands import QUANTILES
from attncheck.evidence.families import Scale, TwoSample, Uniform
from attncheck.evidence.family import Outcome
from attncheck.evidence.plot_data import Counts, read_plot
from attncheck.records.schema import Result, run_digest

RNG = np.random.default_rng(20)


def test_uniform_counts_values_up_to_quantiles() -> None:
    values = RNG.random(2000) ** 1.2
    assert Scale(4).test(values).plot is None
    plot = Uniform(allowance=0.03).test(values).plot
    assert isinstance(plot, Counts)
    assert plot.below == [int((values <= point).sum()) for point in QUANTILES]
    assert (plot.count, plot.allowance) == (2000, 0.03)


def test_ties_of_uniform_values_count_at_their_place() -> None:
    plot = Uniform().test(np.arange(64) / 64).plot
    assert isinstance(plot, Counts)
    assert plot.below[16:-16] == list(range(3, 64, 2))


def test_two_samples_are_counted_at_pooled_quantiles() -> None:
    ours, theirs = RNG.standard_normal(500) + 1.0, RNG.standard_normal(2000)
    plot = TwoSample(ratio=4).test(ours, theirs).plot
    assert isinstance(plot, Counts)
    values = np.sort(np.concatenate([ours, theirs]))
    assert plot.pooled == sorted({int(np.ceil(2500 * point)) for point in QUANTILES} - {2500})
    assert plot.below == [int((ours <= values[rank - 1]).sum()) for rank in plot.pooled]
    assert (plot.count, plot.against) == (500, 2000)


def test_ties_of_two_samples_count_at_their_place() -> None:
    ours, theirs = RNG.integers(0, 5, 300).astype(float), RNG.integers(1, 6, 700).astype(float)
    plot = TwoSample().test(ours, theirs).plot
    assert isinstance(plot, Counts)
    both = np.concatenate([ours, theirs])
    assert plot.pooled == [int((both <= value).sum()) for value in range(5)]
    assert plot.below == [int((ours <= value).sum()) for value in range(5)]


def test_numbers_that_rounding_may_have_made_of_one_are_ties() -> None:
    plot = TwoSample().test(np.full(200, 0.1), np.full(800, np.float32(0.1))).plot
    assert isinstance(plot, Counts)
    assert plot.pooled == []
    assert read_plot(msgspec.to_builtins(plot)) is None


@pytest.mark.parametrize(
    ("outcome", "most"),
    [
        (Uniform().test(RNG.random(9999)), 600),
        (TwoSample().test(RNG.random(50), RNG.random(50)), 600),
        (TwoSample().test(RNG.random(2000), RNG.random(8000)), 700),
    ],
)
def test_pictures_are_small_and_plain(outcome: Outcome, most: int) -> None:
    plot = msgspec.to_builtins(outcome.plot)
    assert json.loads(json.dumps(plot)) == plot
    assert read_plot(plot) == outcome.plot
    assert len(msgspec.json.encode(plot)) < most


def test_picture_has_no_say_in_equality_and_digest() -> None:
    outcome = Uniform().test(RNG.random(100))
    assert hash(outcome) == hash(outcome)
    fields = {name: None for name in Result.__struct_fields__}
    result = msgspec.structs.replace(Result(**fields), id="a", case={})  # type: ignore[arg-type]  # mixed values
    assert run_digest([result]) == run_digest([msgspec.structs.replace(result, plot={"kind": "counts"})])
