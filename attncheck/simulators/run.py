"""`simulate`: draws of a layer or a program under a reading, in blocks with random streams of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeVar, overload

import numpy as np

from attncheck.attention import AttentionLayer
from attncheck.errors import check_choice, check_whole, refuse
from attncheck.limits.draw import draw_limit
from attncheck.limits.programs import limit_of_program
from attncheck.memory import DEFAULT_MEMORY
from attncheck.program import Program
from attncheck.simulators.collapsed import draw_collapsed, input_entries
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.draws import Batch, Draws, ProgramDraws, StackDraws
from attncheck.simulators.layers import (
    draw_direct,
    draw_matrix_free,
    matrix_entries,
    program_entries,
    vector_entries,
)
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_lines, entries_of, results_of
from attncheck.stacks.stack import AttentionStack

Reading = Literal["direct", "matrix-free", "collapsed", "limit"]
Draw = Callable[[AttentionLayer, int, int, np.random.Generator], Draws]
_Batch = TypeVar("_Batch", bound=Batch)

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
        lambda layer, coordinates: input_entries(layer) + _head_entries(layer, coordinates),
    ),
    "limit": _Reading(draw_limit, _head_entries),
}


@dataclasses.dataclass(frozen=True)
class _Work(Generic[_Batch]):
    """How to draw a description under a reading, and the float64 entries of one draw and of all together."""

    draw: Callable[[int, np.random.Generator], _Batch]
    entries: int
    shared: int = 0


@overload
def simulate(
    layer: AttentionLayer,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> Draws: ...


@overload
def simulate(
    layer: AttentionStack,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> StackDraws: ...


@overload
def simulate(
    layer: Program,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
    *,
    width: int | None = None,
) -> ProgramDraws: ...


def simulate(
    layer: AttentionLayer | Program | AttentionStack,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
    *,
    width: int | None = None,
) -> Draws | ProgramDraws | StackDraws:
    """Draw an attention layer, any program, or a stack of layers under one of four readings.

    Parameters
    ----------
    layer : AttentionLayer, Program or AttentionStack
        The description.
    size : int
        Number of independent draws (every draw has its own weights and inputs).
    seed : int or numpy.random.SeedSequence
        The same seed gives the same digits, whatever the chunks the draws are taken in.
    reading : {"direct", "matrix-free", "collapsed", "limit"}, optional
        "direct" multiplies literal n × n matrices; "matrix-free" and "collapsed" have exactly the
        same law at a small part of the cost; "limit" is the theorem's hierarchical law, of a stack what is
        conjectured. "collapsed" is for layers and stacks, and their default; that of programs is "matrix-free".
    coordinates : int
        How many neurons of outputs and inputs to return; at most the width.
    memory : int
        Bytes of working memory, beyond the returned arrays, that a draw may take. Draws are made in
        blocks of some MiB, or one by one where a single draw takes more.
    width : int, optional
        n, for a program: a layer has a width of its own, and the limit has none.

    Returns
    -------
    Draws, ProgramDraws or StackDraws

    Raises
    ------
    InputError
        For an unknown reading, sizes below 1 or beyond what can be allocated, a description whose single
        draw needs more than `memory`, or the limit of a program that has none.

    Examples
    --------
    >>> layer = AttentionLayer(width=16, seq_len=3, num_heads=2)
    >>> draws = simulate(layer, size=100, seed=0, coordinates=2)
    >>> draws.outputs.shape, draws.scores.shape
    ((100, 3, 2), (100, 2, 3, 3))
    >>> program = Program()
    >>> W, V = program.weight("W"), program.weight("V")
    >>> g = program.matmul(W, program.matmul(W, program.initial("h")))
    >>> p = program.score(g, program.matmul(V, g))
    >>> draws = simulate(program, size=100, seed=0, width=16)
    >>> draws.outputs.shape, draws.scores.shape
    ((100, 1, 1), (100, 1))
    """
    size = check_whole("size", size, 1, "pass the number of draws, e.g. size=1000")
    draws: Draws | ProgramDraws | StackDraws = next(
        _iterate(layer, size, size, seed, reading, coordinates, memory, width)
    )
    return draws


@overload
def simulate_chunks(
    layer: AttentionLayer,
    size: int,
    chunk_size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> Iterator[Draws]: ...


@overload
def simulate_chunks(
    layer: AttentionStack,
    size: int,
    chunk_size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> Iterator[StackDraws]: ...


@overload
def simulate_chunks(
    layer: Program,
    size: int,
    chunk_size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
    *,
    width: int | None = None,
) -> Iterator[ProgramDraws]: ...


def simulate_chunks(
    layer: AttentionLayer | Program | AttentionStack,
    size: int,
    chunk_size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
    reading: Reading | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
    *,
    width: int | None = None,
) -> Iterator[Draws] | Iterator[ProgramDraws] | Iterator[StackDraws]:
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
    return _iterate(layer, size, chunk_size, seed, reading, coordinates, memory, width)


def _iterate(
    layer: AttentionLayer | Program | AttentionStack,
    size: int,
    chunk_size: int,
    seed: int | np.random.SeedSequence,
    reading: Reading | None,
    coordinates: int,
    memory: int,
    width: int | None,
) -> Iterator[Any]:
    """Check the arguments at once, and return an iterator over chunks."""
    if not isinstance(layer, AttentionLayer | Program | AttentionStack):
        remedy = "pass attncheck.AttentionLayer(width=...), an attncheck.Program or an attncheck.AttentionStack"
        refuse("layer", layer, "is not an AttentionLayer", remedy)
    size = check_whole("size", size, 1, "pass the number of draws, e.g. size=1000")
    chunk_size = check_whole("chunk_size", chunk_size, 1, "pass the number of draws per chunk")
    coordinates = check_whole("coordinates", coordinates, 1, "pass how many neurons to return")
    usual: Reading = "matrix-free" if isinstance(layer, Program) else "collapsed"
    chosen: Reading = usual if reading is None else reading
    check_choice("reading", chosen, tuple(READINGS))
    root = _seed_sequence(seed)
    work: _Work[Any]
    if isinstance(layer, Program):
        work = _program_work(layer, chosen, coordinates, width)
    elif width is not None:
        refuse("width", width, "is for programs", "leave it out: the layer has a width of its own")
    elif isinstance(layer, AttentionStack):
        work = _stack_work(layer, chosen, coordinates)
    else:
        work = _layer_work(layer, chosen, coordinates)
    needed = 8 * (work.entries + work.shared)
    if needed > check_whole("memory", memory, 1, "pass a number of bytes"):
        kind = {Program: "program", AttentionStack: "stack"}.get(type(layer), "layer")
        remedies = ["raise memory"]
        remedies += ["ask for fewer coordinates"] * (coordinates > 1)
        remedies += [f'use reading="{usual}"'] * (chosen not in (usual, "limit"))
        remedies += ["use a smaller width, or fewer heads or positions"] * (len(remedies) == 1)
        problem = f"allows less than one {chosen} draw of this {kind}, {needed} bytes"
        refuse("memory", memory, problem, ", or ".join(remedies))
    return _chunks(work, size, chunk_size, root, max(1, _BLOCK_ENTRIES // max(1, work.entries)))


def _layer_work(layer: AttentionLayer, reading: Reading, coordinates: int) -> _Work[Draws]:
    _check_coordinates(coordinates, layer.width, reading)
    how = READINGS[reading]

    def draw(count: int, rng: np.random.Generator) -> Draws:
        return how.draw(layer, count, coordinates, rng)

    return _Work(draw, how.entries(layer, coordinates), how.shared(layer))


def _stack_work(stack: AttentionStack, reading: Reading, coordinates: int) -> _Work[StackDraws]:
    # Imported here: it is made of what this package's readings are made of.
    from attncheck.stacks import simulate as stacks

    _check_coordinates(coordinates, stack.width, reading)
    if reading in ("collapsed", "limit"):
        make, entries = {
            "collapsed": (stacks.draw_collapsed_stack, stacks.collapsed_entries),
            "limit": (stacks.draw_limit_stack, stacks.limit_entries),
        }[reading]
        return _Work(lambda count, rng: make(stack, count, coordinates, rng), entries(stack, coordinates))
    bounds = stacks.literal_entries(stack)
    multiplier = DirectMultiplier if reading == "direct" else MatrixFreeMultiplier

    def draw(count: int, rng: np.random.Generator) -> StackDraws:
        return stacks.draw_stack_program(stack, count, coordinates, rng, multiplier)

    return _Work(draw, bounds.lines + (bounds.matrices if reading == "direct" else bounds.bases))


def _check_coordinates(coordinates: int, width: int, reading: Reading) -> None:
    if reading != "limit" and coordinates > width:
        refuse("coordinates", coordinates, f"exceeds width={width}", "ask for at most that many neurons")


def _program_work(program: Program, reading: Reading, coordinates: int, width: int | None) -> _Work[ProgramDraws]:
    if reading == "collapsed":
        refuse("reading", reading, "is for attention layers", 'use "matrix-free", which is exact for any program')
    if reading == "limit":
        law = limit_of_program(program)
        limit_entries = 4 * coordinates * len(program.nodes) + 4 * len(law.scores)
        return _Work(lambda count, rng: law.draw(count, coordinates, rng), limit_entries)
    if width is None:
        refuse("width", width, "is missing", "pass the width of the program's vectors, e.g. width=64")
    n = check_whole("width", width, 1, "pass the number of neurons, e.g. width=64")
    shortest = min((node.length(n) for node in results_of(program)), default=n)
    if coordinates > shortest:
        refuse("coordinates", coordinates, f"exceeds {shortest}", "ask for at most that many neurons")
    entries = entries_of(program, n)
    multiplier = DirectMultiplier if reading == "direct" else MatrixFreeMultiplier

    def draw(count: int, rng: np.random.Generator) -> ProgramDraws:
        return draw_lines(program, n, count, coordinates, rng, multiplier)

    held = entries.matrices if reading == "direct" else entries.bases
    return _Work(draw, entries.lines + held)


def _seed_sequence(seed: Any) -> np.random.SeedSequence:
    if isinstance(seed, np.random.SeedSequence):
        return seed
    return np.random.SeedSequence(check_whole("seed", seed, 0, "pass a whole number, e.g. seed=0"))


def _chunks(
    work: _Work[_Batch], size: int, chunk_size: int, root: np.random.SeedSequence, block: int
) -> Iterator[_Batch]:
    """Draw block after block and hand them out in chunks; a block never depends on the chunk size."""
    chunk: _Batch | None = None
    filled = 0
    for index, start in enumerate(range(0, size, block)):
        key = (*root.spawn_key, index)
        rng = np.random.default_rng(np.random.SeedSequence(root.entropy, spawn_key=key))
        part = work.draw(min(block, size - start), rng)
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


def _empty(part: _Batch, size: int) -> _Batch:
    try:
        return part.empty(size)
    except (MemoryError, ValueError):
        remedy = "draw fewer, or use simulate_chunks with a chunk_size that fits"
        refuse("size", size, "is more draws than memory holds at once", remedy)
