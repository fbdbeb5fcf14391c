"""Definition 1 (iv), Proposition 8: program scores are Gaussian with covariance (*), given one side."""

from __future__ import annotations

from attncheck.layers.case import EXACT_WIDTHS
from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines
from attncheck.strategies import program_cases


@examines("program_scores", program_cases(EXACT_WIDTHS, min_scores=1))
def test_program_scores(case: ProgramCase, hold: Hold) -> None:
    hold(case)
