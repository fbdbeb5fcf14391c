"""Inputs: normals times a shared length, seen through the activation (Definition 1 (i)-(iii))."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("inputs")
def test_inputs(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
