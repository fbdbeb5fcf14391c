"""Definition 1 (i)-(iii): program lines compute what they state, at every width."""

from __future__ import annotations

from attncheck.layers.program import ProgramCase
from attncheck.pytest_plugin import Hold, examines


@examines("netsor")
def test_netsor(case: ProgramCase, hold: Hold) -> None:
    hold(case)
