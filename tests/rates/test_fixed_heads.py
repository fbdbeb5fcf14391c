"""Heads of fixed size: the distance that stays, and what falls beside it."""

from __future__ import annotations

import math

import pytest

import attncheck as ac

_WIDTHS = (64, 128, 256, 512)


def test_what_falls_falls_as_one_over_n_and_the_gap_is_stated() -> None:
    layer = ac.AttentionLayer(width=64, head_dim=8, num_heads=1, activation="identity")
    found = ac.rate(layer, _WIDTHS, size=256)
    assert found.gap is not None
    assert found.gap == ac.distance(layer, size=256, width=math.inf)
    gap = ac.distance(layer, size=1024, width=math.inf)
    assert gap.value == pytest.approx(0.0195, abs=0.002)
    assert abs(gap.value - found.gap.value) < gap.error + found.gap.error
    assert found.order.low <= -1.0 <= found.order.high
    assert found.order.high - found.order.low < 0.2
    assert found.leading == pytest.approx(0.266, rel=0.02)
    assert "plus a remaining distance" in str(found)
    # The distance from the limit of large heads does not fall.
    wide = ac.distance(layer, width=10**4, size=256)
    assert wide.value == pytest.approx(gap.value, abs=wide.error + gap.error)


def test_the_expansion_is_that_of_draws() -> None:
    layer = ac.AttentionLayer(
        width=2_000, head_dim=2, num_heads=3, mask="causal", attention_map="sigmoid", activation="identity"
    )
    for of in ("outputs", "scores"):
        found = ac.distance(layer, of=of, position=2, reference="infinite width", size=256)
        assert found.value == pytest.approx(found.leading, abs=found.error + found.leading_error + 0.01 * found.value)
        assert found.error < 0.3 * found.value


def test_distances_from_both_references_differ_by_the_gap() -> None:
    """Here all distances between the three laws have the same sign and add up."""
    layer = ac.AttentionLayer(width=256, head_dim=1, num_heads=1, seq_len=1, activation="identity")
    gap = ac.distance(layer, "w1", width=math.inf, size=1024)
    beside = ac.distance(layer, "w1", reference="infinite width", size=1024)
    whole = ac.distance(layer, "w1", size=1024)
    assert whole.value == pytest.approx(gap.value + beside.value, abs=gap.error + beside.error + whole.error)
    # head_dim = 1, s = 1: the product of two normals, against one.
    assert gap.value > 20 * beside.value


def test_without_a_head_dim_the_references_are_one() -> None:
    layer = ac.AttentionLayer(width=32)
    assert ac.distance(layer, size=64) == ac.distance(layer, size=64, reference="infinite width")
