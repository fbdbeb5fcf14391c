"""Non-Gaussianity: the law is the hierarchical one, not the Gaussian of the same covariance (Theorem 1)."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("non_gaussianity")
def test_non_gaussianity(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
