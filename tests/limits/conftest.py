"""Integrals at a fraction of their points."""

from __future__ import annotations

import pytest

from attncheck.theory.limits import heads, rows


@pytest.fixture
def fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take fewer points: errors are larger, and still honest."""
    monkeypatch.setattr(heads, "_MOST", 2**19)
    monkeypatch.setattr(rows, "_POINTS", 2**11)
