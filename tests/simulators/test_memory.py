"""Working memory beyond the results, by tracemalloc, is bounded and does not grow."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer, InputError, infinite_heads_tangent, simulate
from attncheck.methods import NAMES

MIB = 2**20
# Far below the promised 512 MiB: a block of draws takes 16 MiB.
BOUND = 40 * MIB


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return a call's peak bytes, without those of returned draws."""
    tracemalloc.start()
    try:
        draws = call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
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
@pytest.mark.parametrize("method", NAMES)
def test_a_draw_takes_no_more_memory_than_is_reckoned(layer: AttentionLayer, coordinates: int, method: Any) -> None:
    def draw(**memory: int) -> Any:
        return simulate(layer, 1, 1, method, coordinates, **memory)

    with pytest.raises(InputError) as caught:
        draw(memory=1)
    needed = re.search(r" takes (\d+) bytes; ", str(caught.value))
    assert needed is not None
    reckoned = int(needed[1])
    if reckoned > 512 * MIB:
        with pytest.raises(InputError, match="memory=536870912: is too little"):
            draw()
        return
    assert peak_bytes(draw) <= reckoned + MIB / 4
    with pytest.raises(InputError, match=f"memory={reckoned - 1}: is too little"):
        draw(memory=reckoned - 1)


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
        with pytest.raises(InputError, match=r"^memory=536870912: is too little for one .* draw"):
            simulate(layer, 1, method=method)

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
    with pytest.raises(InputError) as caught:
        call()
    assert remedy not in str(caught.value)
