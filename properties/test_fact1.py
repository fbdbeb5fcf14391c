"""Fact 1: averages over neurons tend to expectations, with deviations of order n^{-1/2}."""

from __future__ import annotations

from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines


@examines("fact1")
def test_fact1(case: ProgramCase, hold: Hold) -> None:
    hold(case)
