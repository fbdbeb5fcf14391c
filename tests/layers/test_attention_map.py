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
    layer = AttentionLayer(width=8, seq_len=seq_len, attention_map=name, mask=mask)
    scores = np.random.default_rng(0).standard_normal((3, 2, seq_len, seq_len))
    weights = attention_weights(layer, scores)
    np.testing.assert_allclose(weights, literal.weights_of(layer, scores), rtol=1e-13)
    row = layer.map.weights(scores[..., 0, :], visible(layer)[0])
    np.testing.assert_array_equal(row, weights[..., 0, :])


@pytest.mark.parametrize("name", ATTENTION_MAPS)
@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf, 1e308])
def test_masked_scores_do_not_matter(name: Any, hidden: float) -> None:
    layer = AttentionLayer(width=8, seq_len=3, attention_map=name, mask="causal")
    scores = np.random.default_rng(0).standard_normal((3, 3))
    spoilt = np.where(visible(layer), scores, hidden)
    np.testing.assert_array_equal(attention_weights(layer, spoilt), attention_weights(layer, scores))


@pytest.mark.parametrize("name", ATTENTION_MAPS)
def test_scores_are_not_written_to(name: Any) -> None:
    scores = np.random.default_rng(0).standard_normal((2, 3, 3))
    kept = scores.copy()
    weights = attention_weights(AttentionLayer(width=8, seq_len=3, attention_map=name), scores)
    weights[...] = 7.0
    np.testing.assert_array_equal(scores, kept)


def test_large_scores_do_not_overflow() -> None:
    scores = 1e300 * np.array([[1.0, -1.0], [0.5, 0.5]])
    softmax = attention_weights(AttentionLayer(width=8, seq_len=2), scores)
    np.testing.assert_array_equal(softmax, [[1.0, 0.0], [0.5, 0.5]])
    sigmoid = attention_weights(AttentionLayer(width=8, seq_len=2, attention_map="sigmoid"), scores)
    np.testing.assert_array_equal(sigmoid, [[1.0, 0.0], [1.0, 1.0]])
