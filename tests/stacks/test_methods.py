"""Stacks of one layer, chunks of draws, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck import AttentionLayer, AttentionStack, simulate, simulate_chunks
from tests.simulators.cases import BARE

LAYERS = (
    AttentionLayer(width=6, seq_len=3, num_heads=2),
    AttentionLayer(width=3, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=2, mask="causal", activation="relu"),
)


@pytest.mark.parametrize("layer", LAYERS, ids=AttentionLayer.describe)
def test_one_layer_is_an_attention_layer(layer: AttentionLayer) -> None:
    """To the last digit, as the collapsed methods take random numbers in the same order."""
    stack = AttentionStack(layer=layer, depth=1)
    ours, theirs = simulate(stack, 500, 7, coordinates=2), simulate(layer, 500, 7, coordinates=2)
    np.testing.assert_array_equal(ours.outputs, theirs.outputs)
    np.testing.assert_array_equal(ours.scores[:, 0], theirs.scores)
    np.testing.assert_array_equal(ours.grams[:, 0], theirs.input_gram)


@pytest.mark.parametrize("method", ["direct", "collapsed", "limit"])
def test_chunks_have_the_digits_of_the_whole(method: str) -> None:
    stack = BARE[1]
    # Overloads take literal names.
    whole = simulate(stack, 50, 4, method)  # type: ignore[arg-type]  # method is a literal
    chunks = list(simulate_chunks(stack, 50, 17, 4, method))  # type: ignore[arg-type]  # method is a literal
    np.testing.assert_array_equal(np.concatenate([chunk.outputs for chunk in chunks]), whole.outputs)


def test_the_limit_has_more_coordinates_than_neurons() -> None:
    assert simulate(BARE[1], 2, method="limit", coordinates=9).outputs.shape == (2, 2, 9)
