"""Conditional Gaussianity: given scores and values, outputs are exactly normal (Theorem 1, Example 1)."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("conditional")
def test_conditional_gaussianity(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
