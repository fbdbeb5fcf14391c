"""Seeds determine the digits however draws are split; memory, by tracemalloc, is bounded and does not grow."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, AttentionStack, infinite_heads_tangent, simulate, simulate_chunks, tangent_kernel
from attncheck.methods import METHODS, NAMES
from attncheck.simulators.tangent import literal_kernel
from attncheck.strategies import layers
from tests.memory import with_peak
from tests.refusals import refused

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
        call = partial(simulate, LAYER, 5, method=method, memory=1, coordinates=coordinates)
        remedy = refused(call, "^memory=1: ").partition("; ")[2]
        assert remedy.startswith("raise memory, or ")
        assert "method" not in remedy
        assert ("ask for fewer coordinates" in remedy) == (coordinates == 2)


# Memory -----------------------------------------------------------------------------------------

MIB = 2**20
# Far below the promised 512 MiB: a block of draws takes 16 MiB.
BOUND = 40 * MIB


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return a call's peak bytes, without those of returned draws."""
    draws, peak = with_peak(call)
    return peak - sum(value.nbytes for value in draws.as_dict().values()) if draws is not None else peak


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("layer", "method", "coordinates", "sizes"),
    [
        (AttentionLayer(width=256, seq_len=1, num_heads=1), "direct", 1, (40, 100)),
        (AttentionLayer(width=256, seq_len=1, num_heads=1), "matrix-free", 256, (2_000, 8_000)),
        (AttentionLayer(width=4, seq_len=4, num_heads=2, head_dim=512), "direct", 4, (300, 1_000)),
        (AttentionLayer(width=1024, seq_len=12, num_heads=2, input_correlation=0.5), "matrix-free", 1, (20, 80)),
        (AttentionLayer(width=4096, seq_len=12, num_heads=16), "collapsed", 1, (50, 150)),
        (AttentionLayer(width=4096, seq_len=12, num_heads=1, position_std=1.0), "collapsed", 1, (50, 150)),
        (AttentionLayer(width=512, seq_len=12, num_heads=16), "collapsed", 512, (20, 80)),
        (AttentionLayer(width=1, seq_len=1, num_heads=1), "collapsed", 1, (150_000, 300_000)),
        (AttentionLayer(width=8, seq_len=12, num_heads=16), "limit", 500, (20, 80)),
    ],
    ids=lambda x: x.describe() if isinstance(x, AttentionLayer) else str(x),
)
def test_working_memory_does_not_grow_with_the_draws(
    layer: AttentionLayer, method: Any, coordinates: int, sizes: tuple[int, int]
) -> None:
    simulate(layer, 1, method=method)
    few, many = (peak_bytes(partial(simulate, layer, size, 1, method, coordinates)) for size in sizes)
    assert few <= BOUND
    assert many <= min(BOUND, few + MIB)


# Layers of no other test, so that their programs are compiled anew.
@pytest.mark.parametrize(
    ("layer", "coordinates"),
    [
        (AttentionLayer(width=700, seq_len=2, num_heads=3, input_correlation=0.5, activation="erf"), 700),
        (AttentionLayer(width=5, seq_len=25, num_heads=6, mask="causal"), 1),
        (AttentionLayer(width=9, seq_len=3, num_heads=2, head_dim=9_000), 9),
        (AttentionLayer(width=3_000, seq_len=3, num_heads=16, head_dim=3, activation="erf"), 3_000),
        (AttentionLayer(width=50_000, seq_len=6, num_heads=2, head_dim=4, position_std=1.0), 50_000),
        (AttentionLayer(width=300, seq_len=3, num_heads=2, score_scaling="1/n", tied_query_key=True), 300),
    ],
    ids=lambda x: x.describe() if isinstance(x, AttentionLayer) else str(x),
)
@pytest.mark.sampled
@pytest.mark.parametrize("method", NAMES)
def test_a_draw_takes_no_more_memory_than_is_reckoned(layer: AttentionLayer, coordinates: int, method: Any) -> None:
    def draw(**memory: int) -> Any:
        return simulate(layer, 1, 1, method, coordinates, **memory)

    needed = re.search(r" takes (\d+) bytes; ", refused(partial(draw, memory=1), "^memory=1: "))
    assert needed is not None
    reckoned = int(needed[1])
    if reckoned > 512 * MIB:
        refused(draw, "memory=536870912: is too little")
        return
    assert peak_bytes(draw) <= reckoned + MIB / 4
    refused(lambda: draw(memory=reckoned - 1), f"memory={reckoned - 1}: is too little")


@pytest.mark.parametrize(
    ("layer", "method"),
    [
        (AttentionLayer(width=8, seq_len=10**6), "direct"),
        (AttentionLayer(width=8, num_heads=10**9), "matrix-free"),
        (AttentionLayer(width=10**9), "collapsed"),
        (AttentionLayer(width=8, seq_len=10**9), "limit"),
        (AttentionLayer(width=10**400, head_dim=10**30), "direct"),
    ],
    ids=["positions", "heads", "width", "limit", "absurd"],
)
def test_what_is_too_large_is_refused_before_anything_is_made(layer: AttentionLayer, method: Any) -> None:
    def draw() -> None:
        refused(lambda: simulate(layer, 1, method=method), r"^memory=536870912: is too little for one .* draw")

    assert peak_bytes(draw) < MIB


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: simulate(AttentionLayer(width=8, seq_len=800), 1, method="direct", memory=10**6), "method="),
        (lambda: simulate(AttentionLayer(width=8, seq_len=100, bias_std=1.0), 1, method="limit"), "raise memory"),
        (
            lambda: infinite_heads_tangent(AttentionLayer(width=8, seq_len=1, attention_map=np.multiply)),
            "tangent_kernel",
        ),
    ],
    ids=["method", "memory", "draws"],
)
def test_remedies_that_would_be_refused_are_not_named(call: Callable[[], object], remedy: str) -> None:
    assert remedy not in refused(call, "")


# The tangent kernel: gradients match finite differences -------------------------------------------


BASE = {"width": 5, "seq_len": 3, "query_std": 1.3, "key_std": 0.8, "value_std": 1.2, "output_std": 0.7}
# Zero scores have no ReLU slope: none of these layers has one.
LAYERS: dict[str, dict[str, Any]] = {
    "full heads": {},
    "grouped, causal": {"num_kv_heads": 1, "mask": "causal"},
    "grouped, low rank": {"num_kv_heads": 2, "num_heads": 4, "head_dim": 2, "attention_map": "sigmoid"},
    "divided by n": {"score_scaling": "1/n", "attention_map": "relu", "input_std": 2.0},
    "tied": {"score_scaling": "1/n", "tied_query_key": True, "key_std": 1.3},
    "narrow, linear": {"width": 2, "seq_len": 4, "attention_map": "linear", "head_scaling": False},
    "parts": {"sink": (-1.0, 2.0), "softcap": 1.5, "window": 2, "head_dim": 3},
    "capped linear": {"softcap": 1.0, "attention_map": "linear", "width": 3, "mask": "causal"},
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_differences(name: str) -> None:
    """θ is perturbed entry by entry; products of the outputs' changes are the kernel."""
    layer, rng, step = AttentionLayer(**{**BASE, **LAYERS[name]}), np.random.default_rng(3), 1e-6
    n, nu, heads, groups = layer.width, layer.head_width, layer.num_heads, layer.kv_heads
    shapes = {"query": (heads, n, nu), "key": (groups, n, nu), "value": (groups, n, nu), "output": (heads, nu, 2)}
    matrices = {part: rng.standard_normal((1, *shape)) for part, shape in shapes.items()}
    if layer.tied_query_key:
        matrices["key"] = matrices["query"]
    inputs = rng.standard_normal((1, layer.seq_len, n))
    kernel = literal_kernel(layer, inputs, **matrices)
    for part, matrix in enumerate(matrices):
        if layer.tied_query_key and matrix == "key":
            assert not kernel.parts[:, part].any()
            continue
        gradients = []
        for entry in np.ndindex(matrices[matrix].shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = matrices[matrix].copy()
                moved[entry] += sign * step
                changed = {**matrices, matrix: moved}
                if layer.tied_query_key and matrix == "query":
                    changed["key"] = moved
                ends.append(literal_kernel(layer, inputs, **changed).outputs[0])
            gradients.append((ends[0] - ends[1]) / (2.0 * step))
        expected = np.einsum("eri,eqj->ijrq", np.array(gradients), np.array(gradients))
        np.testing.assert_allclose(kernel.parts[0, part], expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_draws_do_not_depend_on_their_number_nor_on_the_scale_of_normalised_inputs() -> None:
    layer = AttentionLayer(width=64, seq_len=3, num_kv_heads=1, mask="causal")
    few, many = (tangent_kernel(layer, size, seed=5, coordinates=2) for size in (300, 600))
    np.testing.assert_array_equal(few.kernel[:100], many.kernel[:100])
    normed = layer.replace(width=6, activation="relu", norm="layer")
    one, longer = (tangent_kernel(each, 50, seed=0).parts for each in (normed, normed.replace(input_std=3.0)))
    np.testing.assert_allclose(one, longer, rtol=1e-9, atol=1e-12)
