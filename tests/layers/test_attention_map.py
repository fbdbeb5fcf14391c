"""Attention weights, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer
from attncheck.layers.attention_map import attention_weights, visible
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS
from tests.simulators import literal


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ATTENTION_MAPS)
@pytest.mark.parametrize("seq_len", [1, 2, 5, 8, 9, 40])
def test_weights_are_the_definition(name: Any, mask: Any, seq_len: int) -> None:
    """Whatever scores are masked, which are not changed."""
    layer = AttentionLayer(width=8, seq_len=seq_len, attention_map=name, mask=mask)
    scores = np.random.default_rng(0).standard_normal((3, 2, seq_len, seq_len))
    expected = literal.weights_of(layer, scores)
    for hidden in (0.0, np.nan, np.inf, -np.inf, 1e308):
        masked = np.where(visible(layer), scores, hidden)
        before = masked.copy()
        weights = attention_weights(layer, masked)
        np.testing.assert_allclose(weights, expected, rtol=1e-13)
        np.testing.assert_array_equal(layer.map.weights(masked[..., 0, :], visible(layer)[0]), weights[..., 0, :])
        weights[...] = 7.0
        np.testing.assert_array_equal(masked, before)


@pytest.mark.parametrize(("name", "weights"), [("softmax", [1.0, 0.0, 0.5, 0.5]), ("sigmoid", [1.0, 0.0, 1.0, 1.0])])
def test_large_scores_do_not_overflow(name: Any, weights: list[float]) -> None:
    scores = 1e300 * np.array([[1.0, -1.0], [0.5, 0.5]])
    layer = AttentionLayer(width=8, seq_len=2, attention_map=name)
    assert attention_weights(layer, scores).ravel().tolist() == weights
