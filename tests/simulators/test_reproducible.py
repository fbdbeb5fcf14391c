"""Seeds determine the digits however draws are split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, InputError, simulate, simulate_chunks
from attncheck.layers.stack import AttentionStack
from attncheck.methods import METHODS, NAMES
from attncheck.strategies import layers

from .cases import BARE

LAYER = AttentionLayer(width=6, seq_len=3, num_heads=2, num_kv_heads=1, mask="causal", input_correlation=0.5)
# Enough entries that a block holds only a few draws.
LARGE = AttentionLayer(width=200, seq_len=12, num_heads=8)


def assert_chunks_join(described: Any, size: int, chunk_size: int, seed: int, method: Any, coordinates: int) -> None:
    """Assert that chunks have the digits of the whole."""
    whole = simulate(described, size, seed, method, coordinates).as_dict()
    chunks = [each.as_dict() for each in simulate_chunks(described, size, chunk_size, seed, method, coordinates)]
    assert [len(chunk["outputs"]) for chunk in chunks[:-1]] == [chunk_size] * (len(chunks) - 1)
    assert whole.keys() == chunks[0].keys()
    for name, value in whole.items():
        assert np.isfinite(value).all()
        np.testing.assert_array_equal(np.concatenate([chunk[name] for chunk in chunks]), value, err_msg=name)


@pytest.mark.parametrize("method", NAMES)
def test_digits_do_not_depend_on_the_chunks(method: Any) -> None:
    for chunk_size in (1, 4, 100, 101, 1010):
        assert_chunks_join(LAYER, 101, chunk_size, 7, method, 3)
    assert_chunks_join(LARGE, 13, 5, 7, method, 3)
    if method in METHODS[AttentionStack]:
        assert_chunks_join(BARE[0], 50, 17, 4, method, 2)


@settings(max_examples=40)
@given(layers(max_entries=3_000), st.sampled_from(list(NAMES)), st.integers(0, 2**64), st.integers(1, 6))
def test_every_layer_is_reproducible(layer: AttentionLayer, method: Any, seed: int, chunk_size: int) -> None:
    assert_chunks_join(layer, 5, chunk_size, seed, method, layer.width)


@pytest.mark.parametrize("method", NAMES)
def test_seeds_and_their_sequences(method: Any) -> None:
    def outputs(seed: Any) -> list[float]:
        return simulate(LAYER, 20, seed, method).outputs.ravel().tolist()

    assert outputs(0) == outputs(0) == outputs(np.int64(0)) == outputs(np.random.SeedSequence(0))
    sequence = np.random.SeedSequence(99)
    seeds = [0, 1, 2**70, sequence, *sequence.spawn(2), np.random.SeedSequence([1, 2])]
    drawn = [outputs(seed) for seed in seeds]
    assert not set(drawn[0]) & set(drawn[1])
    assert len({tuple(values) for values in drawn}) == len(seeds)
    assert [outputs(seed) for seed in seeds] == drawn
    assert sequence.n_children_spawned == 2


def test_a_seed_and_its_children_share_no_normals() -> None:
    """Blocks have their own streams, distinct from each other and from spawned sequences."""
    sequence = np.random.SeedSequence(4)
    samples = [simulate(LARGE, 400, seed, coordinates=200).inputs for seed in (sequence, sequence.spawn(1)[0])]
    assert len(np.unique(np.concatenate(samples))) == sum(sample.size for sample in samples)


def test_the_limit_can_be_sliced_and_has_coordinates_beyond_the_width() -> None:
    draws = simulate(LAYER, 10, method="limit", coordinates=50)
    assert draws.outputs.shape == draws.inputs.shape == (10, 3, 50)
    assert set(draws.as_dict()) == {"outputs", "scores", "inputs"}
    assert len(draws) == 10
    assert len(draws[2:5]) == 3
    assert draws[2:5].key_gram is None
    np.testing.assert_array_equal(draws[2:5].scores, draws.scores[2:5])
    assert simulate(BARE[0], 2, method="limit", coordinates=9).outputs.shape == (2, 2, 9)


@pytest.mark.parametrize("method", [*NAMES, None])
def test_no_method_is_advised_that_does_not_fit_either(method: Any) -> None:
    for coordinates in (1, 2):
        with pytest.raises(InputError, match=r"^memory=1: ") as caught:
            simulate(LAYER, 5, method=method, memory=1, coordinates=coordinates)
        remedy = str(caught.value).partition("; ")[2]
        assert remedy.startswith("raise memory, or ")
        assert "method" not in remedy
        assert ("ask for fewer coordinates" in remedy) == (coordinates == 2)
