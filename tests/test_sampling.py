"""Sampled tests: each is run every day, each of its items within three days, and all that are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = "tests/hostile/test_subjects.py"
NAMED = f"{TESTS}::test_a_run_ends_with_a_verdict_or_a_reason"


def collected(chosen: str, *arguments: str) -> set[str]:
    """Return the ids of the tests that a choice leaves."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"ATTNCHECK_TESTS": chosen}
    done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.skipif(sys.platform == "win32", reason="the sampled tests are of POSIX")
def test_three_days_run_all_items_and_each_day_some_of_each_test() -> None:
    every = collected("all", TESTS)
    days = [collected(str(day), TESTS) for day in range(3)]
    assert set.union(*days) == every
    sampled = {id for id in every if id.startswith(NAMED)}
    assert all(len(sampled) // 3 <= len(sampled & day) <= len(sampled) // 3 + 1 for day in days)
    assert all(every - sampled <= day for day in days)
    assert collected("0", NAMED) == sampled
