"""Exact draws of layers, stacks and programs by one of four methods."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import numpy as np

from attncheck._lib.errors import check_choice, check_integer, refuse
from attncheck._lib.memory import DEFAULT_MEMORY
from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.draws import Batch, Description, Draws, ProgramDraws, StackDraws
from attncheck.layers.parts.scores import one_covariance
from attncheck.layers.program import Program, ProgramAt
from attncheck.layers.stack import AttentionStack
from attncheck.simulators.blocks import DrawPlan, blocks, check_coordinates, chunks, root_of
from attncheck.simulators.collapsed import GRAMS, draw_collapsed
from attncheck.simulators.finite import FINITE, WorkOf, collapsed_layer, head_entries
from attncheck.simulators.tangent import TangentDraws, tangent_work
from attncheck.theory.limits.draw import draw_limit
from attncheck.theory.limits.programs import ProgramLimit, limit_of_program
from attncheck.theory.stacks.recursion import draw_limit_stack, limit_entries

_Drawn = TypeVar("_Drawn", bound=Batch)

Method = Literal["direct", "matrix-free", "collapsed", "limit"]

#: Names of the methods; "direct" multiplies explicit matrices.
NAMES: tuple[Method, ...] = ("direct", "matrix-free", "collapsed", "limit")
# Default methods; the first one that the description supports is used.
_DEFAULT: tuple[Method, ...] = ("collapsed", "matrix-free")


def limit_layer(layer: AttentionLayer, coordinates: int) -> DrawPlan[Draws]:
    """Return the plan for drawing the limit of a layer."""
    shared = 4 * layer.seq_len**4 if one_covariance(layer) else 0
    return DrawPlan(draw_limit, layer, coordinates, head_entries(layer, coordinates), shared)


def _limit_stack(stack: AttentionStack, coordinates: int) -> DrawPlan[StackDraws]:
    return DrawPlan(draw_limit_stack, stack, coordinates, limit_entries(stack, coordinates))


def _limit_program(case: ProgramAt, coordinates: int) -> DrawPlan[ProgramDraws]:
    law = limit_of_program(case.program)
    entries = 4 * coordinates * len(case.program.nodes) + 4 * len(law.scores)
    return DrawPlan(ProgramLimit.draw, law, coordinates, entries)


_LIMITS: Mapping[type, WorkOf[Any, Any]] = {
    AttentionLayer: limit_layer,
    AttentionStack: _limit_stack,
    ProgramAt: _limit_program,
}
#: Methods for each kind of description that `simulate` can draw.
METHODS: Mapping[type, Mapping[str, WorkOf[Any, Any]]] = {
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
    """Draw an attention layer, a stack of layers or a program by one of four methods.

    Parameters
    ----------
    layer : AttentionLayer, AttentionStack, or Program.at(width)
    size : int
        Number of independent draws, each with its own weights and inputs.
    seed : int or numpy.random.SeedSequence
        The same seed gives the same digits, for any chunk size.
    method : {"direct", "matrix-free", "collapsed", "limit"}, optional
        "direct" multiplies n × n matrices; "matrix-free" and "collapsed" have exactly the same law and cost much
        less; "limit" is the infinite-width law of the theorem, conjectured for stacks. The default
        is "collapsed" for layers, and "matrix-free" for stacks and programs, which do not support "collapsed".
    coordinates : int
        Number of output and input neurons to return; at most the width.
    memory : int
        Maximum working memory of a draw in bytes, beyond the returned arrays.

    Returns
    -------
    Draws, StackDraws or ProgramDraws

    Raises
    ------
    InputError
        If the method is unknown, a size is below 1 or too large to allocate, one draw needs more than `memory`, or
        a program has no width or no limit.

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
    size = check_integer("size", size, 1, "pass the number of draws, e.g. size=1000")
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
    """Iterate over the draws of `simulate` in chunks, for samples larger than memory.

    Joined chunks equal the result of `simulate` for the same `size` and `seed`.

    Parameters
    ----------
    chunk_size : int
        Draws per chunk; the last may be shorter. See `simulate` for the other parameters.

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
    size = check_integer("size", size, 1, "pass the number of draws, e.g. size=1000")
    chunk_size = check_integer("chunk_size", chunk_size, 1, "pass the number of draws per chunk")
    coordinates = check_integer("coordinates", coordinates, 1, "pass the number of neurons to return")
    default = next(name for name in _DEFAULT if name in methods)
    chosen: Method = default if method is None else method
    check_choice("method", chosen, NAMES)
    if chosen not in methods:
        refuse("method", chosen, "supports layers only", f'use "{default}", exact for any {layer.kind}')
    root = root_of(seed)
    work = methods[chosen](layer, coordinates)
    alternative = None if chosen in (default, "limit") else (default, methods[default](layer, coordinates))
    _check_fits(work, memory, coordinates, f"{chosen} draw of this {layer.kind}", alternative)
    return chunks(work, size, chunk_size, root)


def _methods_of(layer: Any) -> Mapping[str, WorkOf[Any, Any]]:
    """Return the methods of a description, or raise `InputError` if it cannot be drawn."""
    if isinstance(layer, Program):
        refuse("layer", "a program", "has no width", "choose one, e.g. program.at(64)")
    for kind, methods in METHODS.items():
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
    """Iterate over the draws of `simulate` block by block, without copying them.

    The numbers drawn do not depend on `grams` or `outputs`, because outputs are drawn last in each block.

    Parameters
    ----------
    layer, size, seed, method, coordinates
        As for `simulate`.
    grams : frozenset of str
        Names of the Gram matrices to compute: "key_gram", "value_gram", both or none.
    outputs : bool
        Whether to draw outputs and inputs.
    first : int
        Index of the first block to draw. Blocks before it are skipped, but count towards `size`.

    Examples
    --------
    >>> draws = next(drawn_blocks(AttentionLayer(width=16), 100, 0, outputs=False))
    >>> draws.outputs.shape, draws.scores.shape
    ((100, 4, 0), (100, 2, 4, 4))
    """
    work = (limit_layer if method == "limit" else collapsed_layer)(layer, coordinates)
    if method == "collapsed":
        work = dataclasses.replace(work, function=functools.partial(draw_collapsed, grams=grams))
    work = dataclasses.replace(work, coordinates=coordinates if outputs else 0)
    return blocks(work, size, root_of(seed), first)


def _check_fits(
    work: DrawPlan[Any],
    memory: int,
    coordinates: int,
    description: str,
    alternative: tuple[str, DrawPlan[Any]] | None = None,
) -> None:
    """Raise `InputError` if one draw needs more than `memory` bytes.

    `description` is the name of the draw in the message, and `alternative` the name and the plan of a method that the
    message recommends if it needs less.
    """
    needed = _bytes_of(work)
    if needed > check_integer("memory", memory, 1, "pass a number of bytes"):
        # The score covariance must fit DEFAULT_MEMORY; if it does not, raising `memory` does not help.
        remedies = ["raise memory"] * (8 * work.shared <= DEFAULT_MEMORY)
        remedies += ["ask for fewer coordinates"] * (coordinates > 1)
        if alternative is not None and _bytes_of(alternative[1]) <= memory:
            remedies += [f'use method="{alternative[0]}"']
        width = "" if description.startswith("limit") else "a smaller width, or "
        remedies += [f"use {width}fewer heads or positions"] * (len(remedies) <= 1)
        refuse(
            "memory", memory, f"is too little for one {description}, which takes {needed} bytes", ", or ".join(remedies)
        )


def _bytes_of(work: DrawPlan[Any]) -> int:
    """Return the memory that one draw needs, in bytes."""
    return 8 * (work.entries + work.shared)


def tangent_kernel(
    layer: AttentionLayer,
    size: int,
    seed: int | np.random.SeedSequence = 0,
    coordinates: int = 1,
    memory: int = DEFAULT_MEMORY,
) -> TangentDraws:
    """Draw the tangent kernel Θ^{ii'}_{rr'} = ⟨∂y_r^i/∂θ, ∂y_r'^{i'}/∂θ⟩ of a layer.

    The parameters θ are standard normal; each matrix entry is a parameter times σ/√fan-in of its matrix. With scores
    divided by √n and finitely many heads, the kernel remains random at infinite width, and W^Q and W^K make it nonzero
    between different neurons. `infinite_heads_tangent` returns its mean, the limit for infinitely many heads. Draws
    multiply explicit matrices.

    Parameters
    ----------
    layer : AttentionLayer
        A layer without rotary positions, position biases, normalised queries and keys, or a user's attention map.
    size : int
        Number of independent draws.
    seed : int or numpy.random.SeedSequence
        The same seed gives the same digits.
    coordinates : int
        Number of output neurons; at most the width.
    memory : int
        Maximum working memory of a draw in bytes, beyond the returned arrays.

    Returns
    -------
    TangentDraws
        `kernel` of shape (size, coordinates, coordinates, seq_len, seq_len), `parts` of the four matrices, outputs and
        scores.

    Raises
    ------
    InputError
        If a number is out of range, the layer has an unsupported part, or one draw needs more than `memory`.

    Examples
    --------
    >>> draws = tangent_kernel(AttentionLayer(width=32, seq_len=3), size=200, seed=0, coordinates=2)
    >>> draws.kernel.shape, draws.parts.shape
    ((200, 2, 2, 3, 3), (200, 4, 2, 2, 3, 3))
    """
    check_layer(layer)
    size = check_integer("size", size, 1, "pass the number of draws, e.g. size=1000")
    coordinates = check_integer("coordinates", coordinates, 1, "pass the number of output neurons")
    check_coordinates(coordinates, layer.width)
    work = tangent_work(layer, coordinates)
    _check_fits(work, memory, coordinates, "tangent kernel")
    return next(chunks(work, size, size, root_of(seed)))
