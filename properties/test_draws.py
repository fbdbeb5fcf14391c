"""Draws: independent of each other, never repeated, and with all their digits."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("draws")
def test_draws(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
