"""Seeds determine the digits however draws are split, and bad input is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, Draws, InputError, simulate, simulate_chunks
from attncheck.methods import NAMES
from attncheck.strategies import layers

LAYER = AttentionLayer(width=6, seq_len=3, num_heads=2, num_kv_heads=1, mask="causal", input_correlation=0.5)
# Enough entries that a block holds only a few draws.
LARGE = AttentionLayer(width=200, seq_len=12, num_heads=8)


def assert_equal(one: Draws, other: Draws) -> None:
    assert one.as_dict().keys() == other.as_dict().keys()
    for name, value in one.as_dict().items():
        np.testing.assert_array_equal(value, other.as_dict()[name], err_msg=name)


def joined(chunks: list[Draws]) -> Draws:
    return Draws(**{name: np.concatenate([c.as_dict()[name] for c in chunks]) for name in chunks[0].as_dict()})


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize(
    ("layer", "size", "chunk_sizes"), [(LAYER, 101, (1, 4, 100, 101, 1010)), (LARGE, 13, (5,))], ids=["small", "large"]
)
def test_digits_do_not_depend_on_the_chunks(
    layer: AttentionLayer, size: int, chunk_sizes: tuple[int, ...], method: Any
) -> None:
    whole = simulate(layer, size, 7, method, coordinates=3)
    for chunk_size in chunk_sizes:
        chunks = list(simulate_chunks(layer, size, chunk_size, 7, method, 3))
        assert [len(chunk) for chunk in chunks[:-1]] == [chunk_size] * (len(chunks) - 1)
        assert_equal(joined(chunks), whole)


def test_blocks_are_cut_anywhere() -> None:
    """More draws than a block, in chunks that match neither blocks nor each other."""
    layer = LAYER.replace(width=1, seq_len=1, num_heads=1, num_kv_heads=None)
    size = 120_000
    whole = simulate(layer, size, 3, "collapsed")
    assert_equal(joined(list(simulate_chunks(layer, size, 37_123, 3))), whole)
    assert len(np.unique(whole.outputs)) == size


@pytest.mark.parametrize("method", NAMES)
def test_seeds_and_their_sequences(method: Any) -> None:
    def outputs(seed: Any) -> list[float]:
        return simulate(LAYER, 20, seed, method).outputs.ravel().tolist()

    assert outputs(0) == outputs(0) == outputs(np.int64(0)) == outputs(np.random.SeedSequence(0))
    sequence = np.random.SeedSequence(99)
    children = sequence.spawn(2)
    seeds = [0, 1, 2**70, sequence, *children, np.random.SeedSequence([1, 2])]
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


@settings(max_examples=60)
@given(layers(max_entries=3_000), st.sampled_from(list(NAMES)), st.integers(0, 2**64), st.integers(1, 6))
def test_every_layer_is_reproducible(layer: AttentionLayer, method: Any, seed: int, chunk_size: int) -> None:
    whole = simulate(layer, 5, seed, method, layer.width)
    assert_equal(joined(list(simulate_chunks(layer, 5, chunk_size, seed, method, layer.width))), whole)
    assert all(np.isfinite(value).all() for value in whole.as_dict().values())


def test_draws_can_be_sliced() -> None:
    draws = simulate(LAYER, 10, method="limit")
    assert len(draws) == 10
    assert len(draws[2:5]) == 3
    assert draws[2:5].key_gram is None
    np.testing.assert_array_equal(draws[2:5].scores, draws.scores[2:5])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer": {"width": 8}}, "layer={'width': 8}: is not an AttentionLayer; pass"),
        ({"layer": AttentionLayer}, "layer=<class .*: is not an AttentionLayer; pass"),
        ({"size": 0}, "size=0: must be at least 1; pass"),
        ({"size": 2.0}, r"size=2\.0: must be a whole number; pass"),
        ({"size": True}, "size=True: must be a whole number, not a boolean; pass"),
        ({"size": 10**15}, "size=10+: is more draws than memory holds at once; .*simulate_chunks"),
        ({"size": 10**30}, "size=10+: is more draws than memory holds at once; .*simulate_chunks"),
        ({"seed": -1}, "seed=-1: must be at least 0; pass"),
        ({"seed": None}, "seed=None: must be a whole number; pass"),
        ({"seed": [1, 2]}, r"seed=\[1, 2\]: must be a whole number; pass"),
        ({"method": "exact"}, "method='exact': is not known; use one of 'direct', 'matrix-free', 'collapsed', 'lim"),
        ({"method": []}, r"method=\[\]: is not known; use one of"),
        ({"method": np.array(["limit", "direct"])}, r"method=array\(.*: is not known; use one of"),
        ({"coordinates": 7}, "coordinates=7: exceeds width=6; ask for"),
        ({"coordinates": 1.0}, r"coordinates=1\.0: must be a whole number; pass"),
        ({"memory": 1e9}, r"memory=1000000000\.0: must be a whole number; pass"),
        (
            {"memory": 100},
            "memory=100: is too little for one collapsed draw of this layer, which takes [0-9]+ bytes; raise memory",
        ),
        ({"method": "direct", "memory": 100}, "memory=100: is too little for one direct draw .*; raise memory"),
    ],
    ids=str,
)
def test_bad_input_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="^" + said) as caught:
        simulate(**{"layer": LAYER, "size": 5, **changes})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chunk_size", [0, -1, 1.5, True, None])
def test_bad_chunks_are_refused_before_the_first_one_is_asked_for(chunk_size: Any) -> None:
    with pytest.raises(InputError, match=f"^chunk_size={chunk_size}: .*; pass"):
        simulate_chunks(LAYER, 5, chunk_size)
    with pytest.raises(InputError, match=r"^coordinates=7: "):
        simulate_chunks(LAYER, 5, coordinates=7)


@pytest.mark.parametrize("method", [*NAMES, None])
def test_no_method_is_advised_that_does_not_fit_either(method: Any) -> None:
    with pytest.raises(InputError, match=r"^memory=1: ") as caught:
        simulate(LAYER, 5, method=method, memory=1)
    remedy = str(caught.value).partition("; ")[2]
    assert remedy.startswith("raise memory, or ")
    assert "method" not in remedy
    assert "coordinates" not in remedy
    with pytest.raises(InputError, match=r"; raise memory, or ask for fewer coordinates"):
        simulate(LAYER, 5, method=method, memory=1, coordinates=2)


def test_the_limit_has_coordinates_beyond_the_width() -> None:
    assert simulate(LAYER, 5, method="limit", coordinates=50).outputs.shape == (5, 3, 50)
