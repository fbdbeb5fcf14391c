"""Draws in blocks with separate random streams, returned in chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from attncheck._lib.errors import check_integer, refuse
from attncheck._lib.streams import generator
from attncheck.layers.draws import Batch

_Batch = TypeVar("_Batch", bound=Batch)

#: Maximum number of entries in memory per block: 16 MiB of float64.
BLOCK_ENTRIES = 2**21


@dataclasses.dataclass(frozen=True)
class DrawPlan(Generic[_Batch]):
    """Function that draws a layer, stack or program, with its arguments and memory bounds.

    ``function(described, count, coordinates, rng)`` returns `count` draws of `described`. In float64 entries, `entries`
    bounds the memory per draw, and `shared` the memory that does not depend on the number of draws.
    """

    function: Callable[[Any, int, int, np.random.Generator], _Batch]
    described: Any
    coordinates: int
    entries: int
    shared: int = 0

    def draw(self, count: int, rng: np.random.Generator) -> _Batch:
        """Return `count` draws of the layer, stack or program that the plan describes."""
        return self.function(self.described, count, self.coordinates, rng)

    def take(self, size: int, seed: int) -> _Batch:
        """Return `size` draws, equal to those of `attncheck.simulate` with the same seed."""
        return next(chunks(self, size, size, root_of(seed)))


def check_coordinates(coordinates: int, width: int, shortest: int | None = None) -> None:
    """Raise `InputError` if `coordinates` exceeds `shortest`, the length of the shortest vector.

    By default, this length is the width.
    """
    if coordinates > (width if shortest is None else shortest):
        problem = f"exceeds width={width}" if shortest in (None, width) else f"exceeds {shortest}"
        refuse("coordinates", coordinates, problem, "ask for at most that many neurons")


def root_of(seed: Any) -> np.random.SeedSequence:
    """Return the `SeedSequence` of a whole number, or `seed` itself if it is a `SeedSequence`."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    return np.random.SeedSequence(check_integer("seed", seed, 0, "pass a whole number, e.g. seed=0"))


def blocks(work: DrawPlan[_Batch], size: int, root: np.random.SeedSequence, first: int = 0) -> Iterator[_Batch]:
    """Divide `size` draws into blocks, and yield the blocks from number `first` on.

    The draws of a full block do not depend on `size`.
    """
    block = max(1, BLOCK_ENTRIES // max(1, work.entries))
    for index, start in enumerate(range(first * block, size, block), first):
        key = (*root.spawn_key, index)
        rng = generator(np.random.SeedSequence(root.entropy, spawn_key=key))
        yield work.draw(min(block, size - start), rng)


def chunks(work: DrawPlan[_Batch], size: int, chunk_size: int, root: np.random.SeedSequence) -> Iterator[_Batch]:
    """Yield `size` draws in chunks; the values drawn do not depend on `chunk_size`."""
    chunk: _Batch | None = None
    filled, remaining = 0, size
    for part in blocks(work, size, root):
        used = 0
        while used < len(part):
            if chunk is None:
                chunk, filled = _empty(part, min(chunk_size, remaining)), 0
                remaining -= len(chunk)
            count = min(len(part) - used, len(chunk) - filled)
            chunk.fill(filled, part[used : used + count])
            used, filled = used + count, filled + count
            if filled == len(chunk):
                yield chunk
                chunk = None


def _empty(part: _Batch, size: int) -> _Batch:
    try:
        return part.empty(size)
    except (MemoryError, ValueError):
        remedy = "draw fewer, or use simulate_chunks with a chunk_size that fits"
        refuse("size", size, "is more draws than memory holds at once", remedy)
