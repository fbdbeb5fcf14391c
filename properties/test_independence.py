"""Independence: Gaussian residuals are independent of what they are conditioned on (Definition 1 (iv))."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("independence")
def test_independence(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
