"""Definition 1 (iv), Proposition 8: program scores are Gaussian with covariance (*), given one side."""

from __future__ import annotations

from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines


@examines("program_scores")
def test_program_scores(case: ProgramCase, hold: Hold) -> None:
    hold(case)
