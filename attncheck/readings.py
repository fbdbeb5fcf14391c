"""`simulate`: draws of a layer or a program under a reading, in blocks with random streams of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, overload

import numpy as np

from attncheck._lib.errors import check_choice, check_whole, refuse
from attncheck._lib.memory import DEFAULT_MEMORY
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.program import Program
from attncheck.layers.program.extent import entries_of, results_of
from attncheck.layers.stack import AttentionStack
from attncheck.simulators import stacks
from attncheck.simulators.blocks import FINITE, LayerReading, Work, blocks, chunks, head_entries, root_of
from attncheck.simulators.collapsed import GRAMS, draw_collapsed
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.draws import Draws, ProgramDraws, StackDraws
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_lines
from attncheck.simulators.tangent import TangentDraws, tangent_work
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.programs import limit_of_program
from attncheck.theory.limits.tangent import tangent_limit_work
from attncheck.theory.stacks.draw import draw_limit_stack, limit_entries

Reading = Literal["direct", "matrix-free", "collapsed", "limit"]

#: The readings of a layer.
READINGS: dict[str, LayerReading] = {
    **FINITE,
    "limit": LayerReading(
        draw_limit, head_entries, lambda layer: 0 if layer.rotary_base is None else 4 * layer.seq_len**4
    ),
}


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


def drawn_blocks(
    layer: AttentionLayer,
    size: int,
    seed: int | np.random.SeedSequence,
    reading: Literal["collapsed", "limit"] = "collapsed",
    coordinates: int = 1,
    grams: frozenset[str] = GRAMS,
    outputs: bool = True,
    first: int = 0,
) -> Iterator[Draws]:
    """Iterate over the draws of `simulate` as they are drawn, block by block: nothing is copied, nor leaves the cache.

    What is drawn has the same digits whatever is wanted of it: outputs are drawn last in each block.

    Parameters
    ----------
    layer, size, seed, reading, coordinates
        As for `simulate`.
    grams : frozenset of str
        Gram matrices of the heads that are wanted, of "key_gram" and "value_gram".
    outputs : bool
        Whether outputs and inputs are wanted, which take a quarter of the time.
    first : int
        Number of the block to begin with: full blocks before it are the same for any size.

    Examples
    --------
    >>> draws = next(drawn_blocks(AttentionLayer(width=16), 100, 0, outputs=False))
    >>> draws.outputs.shape, draws.scores.shape
    ((100, 4, 0), (100, 2, 4, 4))
    """
    work = READINGS[reading].work(layer, coordinates)
    shown = coordinates if outputs else 0

    def draw(count: int, rng: np.random.Generator) -> Draws:
        if reading == "limit":
            return draw_limit(layer, count, shown, rng)
        return draw_collapsed(layer, count, shown, rng, grams)

    return blocks(dataclasses.replace(work, draw=draw), size, root_of(seed), first)


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
    root = root_of(seed)
    work: Work[Any]
    if isinstance(layer, Program):
        work = _program_work(layer, chosen, coordinates, width)
    elif width is not None:
        refuse("width", width, "is for programs", "leave it out: the layer has a width of its own")
    elif isinstance(layer, AttentionStack):
        work = _stack_work(layer, chosen, coordinates)
    else:
        work = _layer_work(layer, chosen, coordinates)
    kind = {Program: "program", AttentionStack: "stack"}.get(type(layer), "layer")
    _check_fits(work, memory, coordinates, f"{chosen} draw of this {kind}", usual if chosen != "limit" else chosen)
    return chunks(work, size, chunk_size, root)


def _check_fits(work: Work[Any], memory: int, coordinates: int, what: str, cheapest: str) -> None:
    """Refuse a draw that takes more memory than is allowed."""
    needed = 8 * (work.entries + work.shared)
    if needed > check_whole("memory", memory, 1, "pass a number of bytes"):
        remedies = ["raise memory"]
        remedies += ["ask for fewer coordinates"] * (coordinates > 1)
        remedies += [f'use reading="{cheapest}"'] * (not what.startswith(cheapest))
        remedies += ["use a smaller width, or fewer heads or positions"] * (len(remedies) == 1)
        refuse("memory", memory, f"allows less than one {what}, {needed} bytes", ", or ".join(remedies))


def tangent_kernel(
    layer: AttentionLayer,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    reading: Literal["direct", "collapsed", "limit"] = "collapsed",
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> TangentDraws:
    """Draw the tangent kernel of a layer: Θ^{ii'}_{rr'} = ⟨∂y_r^i/∂θ, ∂y_r'^{i'}/∂θ⟩ over all entries of its matrices.

    Matrices are parametrised by standard normal entries θ, times their standard deviation over √fan-in. With scores
    divided by √n and finitely many heads the kernel stays random at infinite width, and W^Q and W^K couple different
    neurons; with infinitely many heads it is its mean, see `TangentLimit`.

    Parameters
    ----------
    layer : AttentionLayer
        Without rotary positions.
    size : int
        Number of independent draws.
    seed : int or numpy.random.SeedSequence
        The same seed gives the same digits.
    reading : {"direct", "collapsed", "limit"}
        "direct" multiplies literal gradients by all entries, "collapsed" has exactly the same law without any matrix,
        "limit" is the law at infinite width.
    coordinates : int
        How many neurons of the output, at most the width.
    memory : int
        Bytes of working memory, beyond the returned arrays, that a draw may take.

    Returns
    -------
    TangentDraws
        With its `kernel` of shape (size, coordinates, coordinates, seq_len, seq_len), the four matrices' `parts`, and
        the outputs and scores of the same draws.

    Raises
    ------
    InputError
        For numbers out of range, an unknown reading, rotary positions, or a draw that needs more than `memory`.

    Examples
    --------
    >>> draws = tangent_kernel(AttentionLayer(width=32, seq_len=3), size=200, seed=0, coordinates=2)
    >>> draws.kernel.shape, draws.parts.shape
    ((200, 2, 2, 3, 3), (200, 4, 2, 2, 3, 3))
    """
    if not isinstance(layer, AttentionLayer):
        refuse("layer", layer, "is not an AttentionLayer", "pass attncheck.AttentionLayer(width=...)")
    size = check_whole("size", size, 1, "pass the number of draws, e.g. size=1000")
    coordinates = check_whole("coordinates", coordinates, 1, "pass how many neurons of the output")
    check_choice("reading", reading, ("direct", "collapsed", "limit"))
    _check_coordinates(coordinates, layer.width, reading)
    work = tangent_limit_work(layer, coordinates) if reading == "limit" else tangent_work(layer, reading, coordinates)
    _check_fits(work, memory, coordinates, f"{reading} tangent kernel", "limit" if reading == "limit" else "collapsed")
    return next(chunks(work, size, size, root_of(seed)))


def _layer_work(layer: AttentionLayer, reading: Reading, coordinates: int) -> Work[Draws]:
    _check_coordinates(coordinates, layer.width, reading)
    return READINGS[reading].work(layer, coordinates)


def _stack_work(stack: AttentionStack, reading: Reading, coordinates: int) -> Work[StackDraws]:
    _check_coordinates(coordinates, stack.width, reading)
    if reading in ("collapsed", "limit"):
        make, entries = {
            "collapsed": (stacks.draw_collapsed_stack, stacks.collapsed_entries),
            "limit": (draw_limit_stack, limit_entries),
        }[reading]
        return Work(lambda count, rng: make(stack, count, coordinates, rng), entries(stack, coordinates))
    bounds = stacks.literal_entries(stack)
    multiplier = DirectMultiplier if reading == "direct" else MatrixFreeMultiplier

    def draw(count: int, rng: np.random.Generator) -> StackDraws:
        return stacks.draw_stack_program(stack, count, coordinates, rng, multiplier)

    return Work(draw, bounds.lines + (bounds.matrices if reading == "direct" else bounds.bases))


def _check_coordinates(coordinates: int, width: int, reading: Reading) -> None:
    if reading != "limit" and coordinates > width:
        refuse("coordinates", coordinates, f"exceeds width={width}", "ask for at most that many neurons")


def _program_work(program: Program, reading: Reading, coordinates: int, width: int | None) -> Work[ProgramDraws]:
    if reading == "collapsed":
        refuse("reading", reading, "is for attention layers", 'use "matrix-free", which is exact for any program')
    if reading == "limit":
        law = limit_of_program(program)
        limit_entries = 4 * coordinates * len(program.nodes) + 4 * len(law.scores)
        return Work(lambda count, rng: law.draw(count, coordinates, rng), limit_entries)
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
    return Work(draw, entries.lines + held)
