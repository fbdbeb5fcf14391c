"""`simulate`: draws of a layer, a stack or a program under a reading, in blocks with random streams of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import numpy as np

from attncheck._lib.errors import check_choice, check_whole, refuse
from attncheck._lib.memory import DEFAULT_MEMORY
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.description import Description
from attncheck.layers.draws import Batch, Draws, ProgramDraws, StackDraws
from attncheck.layers.program import Program, ProgramAt
from attncheck.layers.stack import AttentionStack
from attncheck.simulators.blocks import DrawPlan, blocks, chunks, root_of
from attncheck.simulators.collapsed import GRAMS, draw_collapsed
from attncheck.simulators.finite import FINITE, WorkOf, collapsed_layer, head_entries
from attncheck.simulators.tangent import TangentDraws, tangent_work
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.programs import limit_of_program
from attncheck.theory.limits.tangent import tangent_limit_work
from attncheck.theory.stacks.draw import draw_limit_stack, limit_entries

_Drawn = TypeVar("_Drawn", bound=Batch)

Method = Literal["direct", "matrix-free", "collapsed", "limit"]

#: The readings by their names, literal matrices first.
NAMES: tuple[Method, ...] = ("direct", "matrix-free", "collapsed", "limit")
# The reading that is taken where none is asked for: the first that the description has.
_USUAL: tuple[Method, ...] = ("collapsed", "matrix-free")


def limit_layer(layer: AttentionLayer, coordinates: int) -> DrawPlan[Draws]:
    """Return the work of drawing the limit of a layer."""
    shared = 0 if layer.rotary_base is None else 4 * layer.seq_len**4

    def draw(count: int, rng: np.random.Generator) -> Draws:
        return draw_limit(layer, count, coordinates, rng)

    return DrawPlan(draw, head_entries(layer, coordinates), shared)


def _limit_stack(stack: AttentionStack, coordinates: int) -> DrawPlan[StackDraws]:
    def draw(count: int, rng: np.random.Generator) -> StackDraws:
        return draw_limit_stack(stack, count, coordinates, rng)

    return DrawPlan(draw, limit_entries(stack, coordinates))


def _limit_program(case: ProgramAt, coordinates: int) -> DrawPlan[ProgramDraws]:
    law = limit_of_program(case.program)

    def draw(count: int, rng: np.random.Generator) -> ProgramDraws:
        return law.draw(count, coordinates, rng)

    return DrawPlan(draw, 4 * coordinates * len(case.program.nodes) + 4 * len(law.scores))


_LIMITS: Mapping[type, WorkOf[Any, Any]] = {
    AttentionLayer: limit_layer,
    AttentionStack: _limit_stack,
    ProgramAt: _limit_program,
}
#: All readings of each kind of description: a further kind is drawn by `simulate` once it is listed here.
READINGS: Mapping[type, Mapping[str, WorkOf[Any, Any]]] = {
    kind: {**finite, "limit": _LIMITS[kind]} for kind, finite in FINITE.items()
}


def simulate(
    layer: Description[_Drawn],
    size: int,
    seed: int | np.random.SeedSequence = 0,
    method: Method | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> _Drawn:
    """Draw an attention layer, a stack of layers, or any program at a width under one of four readings.

    Parameters
    ----------
    layer : AttentionLayer, AttentionStack, or Program.at(width)
        The description.
    size : int
        Number of independent draws (every draw has its own weights and inputs).
    seed : int or numpy.random.SeedSequence
        The same seed gives the same digits, whatever the chunks the draws are taken in.
    method : {"direct", "matrix-free", "collapsed", "limit"}, optional
        "direct" multiplies literal n × n matrices; "matrix-free" and "collapsed" have exactly the
        same law at a small part of the cost; "limit" is the theorem's hierarchical law, of a stack what is
        conjectured. "collapsed" is for layers and stacks, and their default; that of programs is "matrix-free".
    coordinates : int
        How many neurons of outputs and inputs to return; at most the width.
    memory : int
        Bytes of working memory, beyond the returned arrays, that a draw may take. Draws are made in
        blocks of some MiB, or one by one where a single draw takes more.

    Returns
    -------
    Draws, StackDraws or ProgramDraws

    Raises
    ------
    InputError
        For an unknown reading, sizes below 1 or beyond what can be allocated, a description whose single
        draw needs more than `memory`, a program without a width, or the limit of one that has none.

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
    >>> draws = simulate(program.at(16), size=100, seed=0)
    >>> draws.outputs.shape, draws.scores.shape
    ((100, 1, 1), (100, 1))
    """
    size = check_whole("size", size, 1, "pass the number of draws, e.g. size=1000")
    return next(simulate_chunks(layer, size, size, seed, method, coordinates, memory))


def simulate_chunks(
    layer: Description[_Drawn],
    size: int,
    chunk_size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
    method: Method | None = None,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> Iterator[_Drawn]:
    """Iterate over the draws of `simulate` in chunks, for more draws than memory holds.

    The chunks, joined, have the digits that `simulate` returns for the same `size` and `seed`.

    Parameters
    ----------
    chunk_size : int
        Draws per chunk; the last one may be shorter. The others are as in `simulate`.

    Yields
    ------
    Draws, StackDraws or ProgramDraws

    Examples
    --------
    >>> layer = AttentionLayer(width=16)
    >>> sum(float((chunk.outputs**2).sum()) > 0 for chunk in simulate_chunks(layer, 250, 100))
    3
    """
    methods = _methods_of(layer)
    size = check_whole("size", size, 1, "pass the number of draws, e.g. size=1000")
    chunk_size = check_whole("chunk_size", chunk_size, 1, "pass the number of draws per chunk")
    coordinates = check_whole("coordinates", coordinates, 1, "pass how many neurons to return")
    usual = next(name for name in _USUAL if name in methods)
    chosen: Method = usual if method is None else method
    check_choice("method", chosen, NAMES)
    if chosen not in methods:
        refuse("method", chosen, "is for attention layers", f'use "{usual}", which is exact for any {layer.kind}')
    root = root_of(seed)
    work = methods[chosen](layer, coordinates)
    cheapest = usual if chosen != "limit" else chosen
    _check_fits(work, memory, coordinates, f"{chosen} draw of this {layer.kind}", cheapest)
    return chunks(work, size, chunk_size, root)


def _methods_of(layer: Any) -> Mapping[str, WorkOf[Any, Any]]:
    """Return the readings of a description, or refuse what cannot be drawn."""
    if isinstance(layer, Program):
        refuse("layer", "a program", "has no width", "pass the program at one, e.g. program.at(64)")
    for kind, methods in READINGS.items():
        if isinstance(layer, kind):
            return methods
    remedy = "pass attncheck.AttentionLayer(width=...), an attncheck.AttentionStack, or program.at(width)"
    refuse("layer", layer, "is not an AttentionLayer", remedy)


def drawn_blocks(
    layer: AttentionLayer,
    size: int,
    seed: int | np.random.SeedSequence,
    method: Literal["collapsed", "limit"] = "collapsed",
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
    work = (limit_layer if method == "limit" else collapsed_layer)(layer, coordinates)
    shown = coordinates if outputs else 0

    def draw(count: int, rng: np.random.Generator) -> Draws:
        if method == "limit":
            return draw_limit(layer, count, shown, rng)
        return draw_collapsed(layer, count, shown, rng, grams)

    return blocks(dataclasses.replace(work, draw=draw), size, root_of(seed), first)


def _check_fits(work: DrawPlan[Any], memory: int, coordinates: int, what: str, cheapest: str) -> None:
    """Refuse a draw that takes more memory than is allowed."""
    needed = 8 * (work.entries + work.shared)
    if needed > check_whole("memory", memory, 1, "pass a number of bytes"):
        remedies = ["raise memory"]
        remedies += ["ask for fewer coordinates"] * (coordinates > 1)
        remedies += [f'use method="{cheapest}"'] * (not what.startswith(cheapest))
        remedies += ["use a smaller width, or fewer heads or positions"] * (len(remedies) == 1)
        refuse("memory", memory, f"allows less than one {what}, {needed} bytes", ", or ".join(remedies))


def tangent_kernel(
    layer: AttentionLayer,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    method: Literal["direct", "collapsed", "limit"] = "collapsed",
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
    method : {"direct", "collapsed", "limit"}
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
    check_choice("method", method, ("direct", "collapsed", "limit"))
    if method != "limit" and coordinates > layer.width:
        refuse("coordinates", coordinates, f"exceeds width={layer.width}", "ask for at most that many neurons")
    work = tangent_limit_work(layer, coordinates) if method == "limit" else tangent_work(layer, method, coordinates)
    _check_fits(work, memory, coordinates, f"{method} tangent kernel", "limit" if method == "limit" else "collapsed")
    return next(chunks(work, size, size, root_of(seed)))
