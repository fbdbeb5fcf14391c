"""`simulate`: draws of a layer under a reading, in blocks with random streams of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from attncheck.attention import AttentionLayer
from attncheck.errors import check_choice, check_whole, refuse
from attncheck.limits.law import draw_limit
from attncheck.simulators.collapsed import draw_collapsed
from attncheck.simulators.draws import Draws
from attncheck.simulators.layers import (
    draw_direct,
    draw_matrix_free,
    matrix_entries,
    program_entries,
    vector_entries,
)

Reading = Literal["direct", "matrix-free", "collapsed", "limit"]
Draw = Callable[[AttentionLayer, int, int, np.random.Generator], Draws]

DEFAULT_MEMORY = 512 * 2**20
# Working entries of a block, 16 MiB: large programs need several draws a block, small arrays stay in the cache.
_BLOCK_ENTRIES = 2**21


@dataclasses.dataclass(frozen=True)
class _Reading:
    """How to draw, and how many float64 entries one draw works on and all draws share."""

    draw: Draw
    entries: Callable[[AttentionLayer, int], int]
    shared: Callable[[AttentionLayer], int] = lambda layer: 0


def _head_entries(layer: AttentionLayer, coordinates: int) -> int:
    """Bound the entries per draw of the readings whose heads hold no vectors of neurons."""
    s, heads = layer.seq_len, layer.num_heads
    return 12 * heads * s**2 + 16 * s + (3 * heads + 6) * s * coordinates


READINGS: dict[str, _Reading] = {
    "direct": _Reading(
        draw_direct,
        lambda layer, coordinates: vector_entries(layer, 2 * layer.width) + matrix_entries(layer),
        program_entries,
    ),
    "matrix-free": _Reading(draw_matrix_free, vector_entries, program_entries),
    "collapsed": _Reading(
        draw_collapsed,
        lambda layer, coordinates: 2 * layer.seq_len * layer.width + _head_entries(layer, coordinates),
    ),
    "limit": _Reading(draw_limit, _head_entries),
}


def simulate(
    layer: AttentionLayer,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading = "collapsed",
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> Draws:
    """Draw an attention layer's outputs, scores and inputs under one of four readings.

    Parameters
    ----------
    layer : AttentionLayer
        The description.
    size : int
        Number of independent draws (every draw has its own weights and inputs).
    seed : int or numpy.random.SeedSequence
        The same seed gives the same digits, whatever the chunks the draws are taken in.
    reading : {"direct", "matrix-free", "collapsed", "limit"}
        "direct" multiplies literal n × n matrices; "matrix-free" and "collapsed" have exactly the
        same law at a small part of the cost; "limit" is the theorem's hierarchical law.
    coordinates : int
        How many neurons of outputs and inputs to return; at most the width.
    memory : int
        Bytes of working memory, beyond the returned arrays, that a draw may take. Draws are made in
        blocks of some MiB, or one by one where a single draw takes more.

    Returns
    -------
    Draws

    Raises
    ------
    InputError
        For an unknown reading, sizes below 1 or beyond what can be allocated, or a layer whose single
        draw needs more than `memory`.

    Examples
    --------
    >>> layer = AttentionLayer(width=16, seq_len=3, num_heads=2)
    >>> draws = simulate(layer, size=100, seed=0, coordinates=2)
    >>> draws.outputs.shape, draws.scores.shape
    ((100, 3, 2), (100, 2, 3, 3))
    """
    size = check_whole("size", size, 1, "pass the number of draws, e.g. size=1000")
    chunks = simulate_chunks(layer, size, size, seed, reading, coordinates, memory)
    return next(chunks)


def simulate_chunks(
    layer: AttentionLayer,
    size: int,
    chunk_size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading = "collapsed",
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> Iterator[Draws]:
    """Iterate over the draws of `simulate` in chunks, for more draws than memory holds.

    The chunks, joined, have the digits that `simulate` returns for the same `size` and `seed`.

    Parameters
    ----------
    chunk_size : int
        Draws per chunk; the last one may be shorter. The others are as in `simulate`.

    Yields
    ------
    Draws

    Examples
    --------
    >>> layer = AttentionLayer(width=16)
    >>> sum(float((chunk.outputs**2).sum()) > 0 for chunk in simulate_chunks(layer, 250, 100))
    3
    """
    if not isinstance(layer, AttentionLayer):
        refuse("layer", layer, "is not an AttentionLayer", "pass attncheck.AttentionLayer(width=...)")
    size = check_whole("size", size, 1, "pass the number of draws, e.g. size=1000")
    chunk_size = check_whole("chunk_size", chunk_size, 1, "pass the number of draws per chunk")
    coordinates = check_whole("coordinates", coordinates, 1, "pass how many neurons to return")
    check_choice("reading", reading, tuple(READINGS))
    if reading != "limit" and coordinates > layer.width:
        refuse("coordinates", coordinates, f"exceeds width={layer.width}", "ask for at most that many neurons")
    root = _seed_sequence(seed)
    how = READINGS[reading]
    entries = how.entries(layer, coordinates)
    needed = 8 * (entries + how.shared(layer))
    if needed > check_whole("memory", memory, 1, "pass a number of bytes"):
        remedy = 'raise memory, ask for fewer coordinates, or use reading="collapsed"'
        refuse("memory", memory, f"allows less than one {reading} draw of this layer, {needed} bytes", remedy)
    block = max(1, _BLOCK_ENTRIES // entries)
    return _chunks(layer, size, chunk_size, root, how.draw, block, coordinates)


def _seed_sequence(seed: Any) -> np.random.SeedSequence:
    if isinstance(seed, np.random.SeedSequence):
        return seed
    return np.random.SeedSequence(check_whole("seed", seed, 0, "pass a whole number, e.g. seed=0"))


def _chunks(
    layer: AttentionLayer,
    size: int,
    chunk_size: int,
    root: np.random.SeedSequence,
    draw: Draw,
    block: int,
    coordinates: int,
) -> Iterator[Draws]:
    """Draw block after block and hand them out in chunks; a block never depends on the chunk size."""
    chunk: Draws | None = None
    filled = 0
    for index, start in enumerate(range(0, size, block)):
        key = (*root.spawn_key, index)
        rng = np.random.default_rng(np.random.SeedSequence(root.entropy, spawn_key=key))
        part = draw(layer, min(block, size - start), coordinates, rng)
        used = 0
        while used < len(part):
            if chunk is None:
                chunk, filled = _empty(part, min(chunk_size, size - start - used)), 0
            taken = min(len(part) - used, len(chunk) - filled)
            chunk.fill(filled, part[used : used + taken])
            used, filled = used + taken, filled + taken
            if filled == len(chunk):
                yield chunk
                chunk = None


def _empty(part: Draws, size: int) -> Draws:
    try:
        return part.empty(size)
    except (MemoryError, ValueError):
        remedy = "draw fewer, or use simulate_chunks with a chunk_size that fits"
        refuse("size", size, "is more draws than memory holds at once", remedy)
