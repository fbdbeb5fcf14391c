"""The fixture `evidence`: one budget for a session, in any order and with any number of workers."""

from __future__ import annotations

import fnmatch
import re

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import scipy

def normal(rng, size):
    return rng.standard_normal(size)

@pytest.mark.parametrize("std", [1.0, 1.2])
def test_scale(evidence, std):
    evidence.assert_law(normal, scipy.stats.norm(), effect=0.1)
    evidence.assert_scale(normal, std=std, effect=0.1)

def test_shares(evidence):
    assert round(evidence.alpha * 4, 12) == ALPHA

def test_pairs(evidence):
    evidence.assert_independent(lambda rng, size: (rng.random(size), rng.random(size)), effect=0.2)

def test_without():
    pass
"""
SUMMARY = "evidence: 5 assertions, violated in *test_scale?1.2? (chance of any false alarm at most 1e-06)"


def messages(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("E ")]


def test_the_budget_is_shared_by_the_tests_that_use_it_and_a_selected_or_replayed_one_draws_the_same(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(TESTS.replace("ALPHA", "1e-6"))
    whole = pytester.runpytest_inprocess("-p", "no:xdist")
    whole.assert_outcomes(passed=4, failed=1)
    whole.stdout.fnmatch_lines(["*violated: standard deviation *expected 1.2 *at most 4.2e-08)", SUMMARY])
    both = pytester.runpytest_inprocess("-n", "2")
    both.assert_outcomes(passed=4, failed=1)
    both.stdout.fnmatch_lines([SUMMARY])
    assert messages(whole.outlines) == messages(both.outlines)
    selected = pytester.runpytest_inprocess("-p", "no:xdist", "-k", "1.2")
    assert messages(selected.outlines) == messages(whole.outlines)
    found = re.search(r"repeat with pytest '(.+)' --attncheck-seed=0 (--evidence-alpha=\S+)", whole.stdout.str())
    assert found is not None
    assert found[1] == f"{path.name}::test_scale[1.2]"
    replayed = pytester.runpytest_inprocess("-p", "no:xdist", found[1], found[2])
    assert messages(replayed.outlines) == messages(whole.outlines)


def test_the_budget_is_an_option_and_an_ini_value(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nevidence_alpha = 0.001\n")
    pytester.makepyfile(TESTS.replace("ALPHA", "0.001"))
    pytester.runpytest_inprocess("-k", "shares").assert_outcomes(passed=1, deselected=4)
    pytester.makepyfile(TESTS.replace("ALPHA", "0.01"))
    pytester.runpytest_inprocess("-k", "shares", "--evidence-alpha=0.01").assert_outcomes(passed=1, deselected=4)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("def test_one(evidence): evidence.alpha", ["--evidence-alpha=0"], "*evidence_alpha=0.0: must be greater*"),
        ("def test_one(evidence): pass", ["--evidence-alpha=2"], "*evidence_alpha=2.0: must be less than 1*"),
        ("def test_one(evidence): pass", ["-o", "evidence_alpha=abc"], "*evidence_alpha=abc: is not a number*"),
        (
            "def test_one(request): request.getfixturevalue('evidence')",  # a test that is not counted
            [],
            "*name the fixture evidence among the test's arguments*",
        ),
    ],
)
def test_refused(pytester: pytest.Pytester, source: str, options: list[str], message: str) -> None:
    pytester.makepyfile(source)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
    assert fnmatch.fnmatch(result.stdout.str() + result.stderr.str(), f"*{message}*")
    assert result.ret != 0
