"""Definition 1 (i)-(iii): program lines compute what they state, at every width."""

from __future__ import annotations

from attncheck.layers.case import EXACT_WIDTHS
from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines
from attncheck.strategies import program_cases


@examines("netsor", program_cases(EXACT_WIDTHS))
def test_netsor(case: ProgramCase, hold: Hold) -> None:
    hold(case)
