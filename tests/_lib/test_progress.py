"""Progress is shown on terminals only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

import attncheck as ac

WIDTHS = (64, 96, 128, 192)


@contextlib.contextmanager
def standard_error(number: int | None) -> Iterator[None]:
    """Let a file be standard error, or none."""
    before = os.dup(2)
    try:
        os.close(2) if number is None else os.dup2(number, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def rate() -> tuple[int, ...]:
    return ac.rate(ac.AttentionLayer(width=64), WIDTHS, of="scores", size=32).widths


def test_rates_count_their_widths_on_a_terminal_alone_and_need_no_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert rate() == WIDTHS
    assert capfdbinary.readouterr() == (b"", b"")
    with standard_error(None):
        assert rate() == WIDTHS
    ours, theirs = pytest.importorskip("pty").openpty()
    monkeypatch.setenv("TERM", "xterm")
    with standard_error(theirs):
        assert rate() == WIDTHS
    os.close(theirs)
    shown = os.read(ours, 2**20)
    os.close(ours)
    assert b"widths" in shown
    assert b"0/4" in shown
