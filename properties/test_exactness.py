"""Exactness: the joint law of inputs, scores and outputs is that of the exact readings at the same width."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines
from attncheck.strategies import layers


@examines("exactness", layers())
def test_exactness(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
