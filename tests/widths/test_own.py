"""Layers of attncheck itself: what is sampled holds the exponents that are computed."""

from __future__ import annotations

from typing import Any

import pytest

import attncheck as ac
from attncheck._lib.errors import InputError

WIDTHS = (16, 32, 64, 128)
LAYER = ac.AttentionLayer(width=64, seq_len=3)


@pytest.mark.parametrize(
    ("changes", "scores"),
    [
        ({}, "0"),
        ({"score_scaling": "1/n"}, "-0.5"),
        ({"head_dim": 8, "num_heads": 4}, "0"),
        ({"head_dim": 8, "score_scaling": "1/n"}, "0"),
        ({"attention_map": "linear", "mask": "causal"}, "0"),
    ],
)
def test_sampled_exponents_hold_the_computed_ones(changes: dict[str, Any], scores: str) -> None:
    found = ac.widths(LAYER.replace(**changes), WIDTHS, seeds=32)
    assert found["scores"].predicted == scores
    assert [row.name for row in found.rows] == ["inputs", "scores", "outputs"]
    for row in found.rows:
        assert row.low is not None
        assert row.high is not None
        assert row.low < float(row.predicted) < row.high
        assert row.verdict != "violated"


def test_a_layer_that_is_predicted_wrong_is_violated() -> None:
    found = ac.widths(LAYER.replace(score_scaling="1/n"), WIDTHS, "standard", seeds=32)
    assert [row.name for row in found.violated] == ["scores"]


def test_it_takes_no_functions() -> None:
    with pytest.raises(InputError, match=r"loss=.*: says nothing of a layer of attncheck; leave it out"):
        ac.widths(LAYER, WIDTHS, loss=print)
