"""Integrals at a fraction of their points."""

from __future__ import annotations

import pytest

from attncheck.theory.limits import covariance, heads, one_row, rows


@pytest.fixture
def fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take fewer points: errors are larger, and still honest."""
    monkeypatch.setattr(heads, "_COST", 2e8)
    monkeypatch.setattr(one_row, "_COST", 2e8)
    monkeypatch.setattr(rows, "_POINTS", 2**11)
    monkeypatch.setattr(covariance, "_MOST_POINTS", 2**11)
