"""Outputs: their law given the scores, at finite width, and against the limit (Corollary 2, Example 1)."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("outputs")
def test_outputs(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
