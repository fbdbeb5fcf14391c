"""Sampled tests: some items of each run, always the same, and all that are named."""

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


def test_some_items_of_each_test_run_and_always_the_same(place: pytest.Pytester) -> None:
    every, chosen = collected(place, "all"), collected(place, "")
    assert len(every) == 8 + 2 + 4
    assert chosen == collected(place, "") < every
    assert {id for id in every if "::test_every[" in id} <= chosen
    for name, count in {"test_many": 8, "test_two": 2}.items():
        assert 1 <= sum(f"::{name}[" in id for id in chosen) < count
    assert len(collected(place, "", "test_it.py::test_many")) == 8
