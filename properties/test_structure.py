"""Structure: outputs and scores depend on inputs, positions and draws as the layer declares."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("structure")
def test_structure(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
