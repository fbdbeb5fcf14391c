"""Scores: Gaussian given the keys, with Wishart key Grams (Definition 1 (iv), formula (*), Proposition 8)."""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer
from attncheck.pytest_plugin import Hold, examines


@examines("scores")
def test_scores(layer: AttentionLayer, hold: Hold) -> None:
    hold(layer)
