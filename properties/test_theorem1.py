"""Theorem 1: averages of outputs tend to a random limit that the scores determine."""

from __future__ import annotations

from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines


@examines("theorem1")
def test_theorem1(case: ProgramCase, hold: Hold) -> None:
    hold(case)
