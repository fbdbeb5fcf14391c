"""Corollary 2, Example 1: results and scores of programs have their joint law."""

from __future__ import annotations

from attncheck.layers.case import EXACT_WIDTHS
from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines
from attncheck.strategies import program_cases


@examines("corollary2", program_cases(EXACT_WIDTHS, min_scores=1))
def test_corollary2(case: ProgramCase, hold: Hold) -> None:
    hold(case)
