"""Heads of fixed size: the distance that stays, and what falls beside it."""

from __future__ import annotations

import math

import pytest

import attncheck as ac

LAYER = ac.AttentionLayer(width=64, head_dim=8, num_heads=1, activation="identity")


def test_what_falls_falls_as_one_over_n_and_the_gap_is_stated() -> None:
    rate = ac.rate(LAYER, (64, 128, 256, 512), size=256)
    assert rate.gap is not None
    assert rate.gap == ac.distance(LAYER, size=256, width=math.inf)
    gap = ac.distance(LAYER, size=512, width=math.inf)
    assert gap.value == pytest.approx(0.0195, abs=0.002)
    assert abs(gap.value - rate.gap.value) < gap.error + rate.gap.error
    assert rate.order.low <= -1.0 <= rate.order.high
    assert rate.order.high - rate.order.low < 0.2
    assert rate.leading == pytest.approx(0.266, rel=0.02)
    assert "plus a remaining distance" in str(rate)
    # The distance from the limit of large heads does not fall.
    wide = ac.distance(LAYER, width=10**4, size=256)
    assert wide.value == pytest.approx(gap.value, abs=wide.error + gap.error)
    # It is small where heads are large, and nothing without a head_dim.
    large = ac.distance(LAYER.replace(head_dim=64), "kl", width=math.inf, size=1024)
    assert large.value == pytest.approx(1.3e-4, rel=0.05)
    full = LAYER.replace(head_dim=None)
    assert ac.distance(full, size=64) == ac.distance(full, size=64, reference="infinite width")


@pytest.mark.parametrize("of", ["outputs", "scores"])
def test_the_expansion_is_that_of_draws(of: str) -> None:
    layer = LAYER.replace(width=2_000, head_dim=2, num_heads=3, mask="causal", attention_map="sigmoid")
    distance = ac.distance(layer, of=of, position=2, reference="infinite width", size=256)
    allowed = distance.error + distance.leading_error + 0.01 * distance.value
    assert distance.value == pytest.approx(distance.leading, abs=allowed)
    assert distance.error < 0.3 * distance.value


def test_distances_from_both_references_differ_by_the_gap() -> None:
    """Here all distances between the three laws have the same sign and add up."""
    layer = LAYER.replace(width=256, head_dim=1, seq_len=1)
    gap = ac.distance(layer, "w1", width=math.inf, size=256)
    beside = ac.distance(layer, "w1", reference="infinite width", size=256)
    whole = ac.distance(layer, "w1", size=256)
    assert whole.value == pytest.approx(gap.value + beside.value, abs=gap.error + beside.error + whole.error)
    # head_dim = 1, s = 1: the product of two normals, against one.
    assert gap.value > 20 * beside.value
