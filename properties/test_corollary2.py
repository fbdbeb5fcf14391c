"""Corollary 2, Example 1: results and scores of programs have their joint law."""

from __future__ import annotations

from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines


@examines("corollary2")
def test_corollary2(case: ProgramCase, hold: Hold) -> None:
    hold(case)
