"""What takes long counts on a terminal, and is quiet without one."""

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


def test_rates_count_their_widths_on_a_terminal() -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    ran = subprocess.run([sys.executable, "-c", RATE], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = os.read(ours, 2**20)
    os.close(ours)
    assert ran.returncode == 0
    assert ran.stdout == WIDTHS
    assert b"widths" in shown
    assert b"0/4" in shown


def test_rates_are_quiet_without_a_terminal() -> None:
    ran = subprocess.run([sys.executable, "-c", RATE], capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (WIDTHS, b"")


def test_rates_need_no_standard_error() -> None:
    ran = subprocess.run([sys.executable, "-c", f"import os; os.close(2)\n{RATE}"], stdout=subprocess.PIPE, check=True)
    assert ran.stdout == WIDTHS
