"""Progress is shown on terminals only."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RATE = """
import attncheck as ac
print(ac.rate(ac.AttentionLayer(width=64), (64, 96, 128, 192), of="scores", size=32).widths)
"""
WIDTHS = b"(64, 96, 128, 192)\n"


def test_rates_count_their_widths_on_a_terminal_and_need_no_standard_error() -> None:
    """In one process: on a terminal first, then with standard error closed."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    twice = f"{RATE}\nimport os; os.close(2)\n{RATE}"
    ran = subprocess.run([sys.executable, "-c", twice], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = os.read(ours, 2**20)
    os.close(ours)
    assert ran.returncode == 0
    assert ran.stdout == 2 * WIDTHS
    assert b"widths" in shown
    assert b"0/4" in shown


def test_rates_are_quiet_without_a_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    exec(RATE, {})
    assert capfdbinary.readouterr() == (WIDTHS, b"")
