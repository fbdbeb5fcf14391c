"""Sampled tests: each is run every day, each of its items within three days, and all that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize("number", range(8))
def test_many(number): ...

@pytest.mark.sampled
@pytest.mark.parametrize("number", range(2))
def test_two(number): ...

@pytest.mark.parametrize("number", range(4))
def test_every(number): ...
"""
SIZES = {"test_many": (2, 3), "test_two": (1, 1), "test_every": (4, 4)}


@pytest.fixture
def place(pytester: pytest.Pytester) -> pytest.Pytester:
    """Return a folder with the suite's conftest and a few tests."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_it=TESTS)
    return pytester


def collected(place: pytest.Pytester, chosen: str, *arguments: str) -> set[str]:
    """Return the ids of the tests that a choice leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNCHECK_TESTS", chosen)
        done = place.runpytest_inprocess("--collect-only", "-q", "-p", "no:cacheprovider", *arguments)
    return {line for line in done.outlines if "::" in line}


def test_three_days_run_all_items_and_each_day_some_of_each_test(place: pytest.Pytester) -> None:
    every = collected(place, "all")
    days = [collected(place, str(day)) for day in range(3)]
    assert len(every) == 8 + 2 + 4
    assert set.union(*days) == every
    for name, (fewest, most) in SIZES.items():
        assert all(fewest <= sum(f"::{name}[" in id for id in day) <= most for day in days)
    assert len(collected(place, "0", "test_it.py::test_many")) == 8
