"""Exactness: inputs, scores and outputs have the joint law of the exact methods at the same width."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("exactness")
def test_exactness(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
