"""Theorem 1: averages of outputs tend to a random limit that the scores determine."""

from __future__ import annotations

from attncheck.layers.case import RATE_WIDTHS
from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines
from attncheck.strategies import program_cases


@examines("theorem1", program_cases(RATE_WIDTHS, min_scores=1))
def test_theorem1(case: ProgramCase, hold: Hold) -> None:
    hold(case)
