"""Sampling methods at finite width, which draw from the same law at different costs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Batch, Draws, ProgramDraws, StackDraws
from attncheck.layers.norm import normalised
from attncheck.layers.program import Node, ProgramAt, Step
from attncheck.layers.program.extent import Entries, entries_of, results_of
from attncheck.layers.stack import AttentionStack
from attncheck.layers.stack_program import StackProgram
from attncheck.simulators.blocks import DrawPlan, check_coordinates
from attncheck.simulators.collapsed import draw_collapsed, input_entries
from attncheck.simulators.interpret import interpret
from attncheck.simulators.layers import draw_program, key_entries, matrix_entries, program_entries, vector_entries
from attncheck.simulators.linalg import gram_of
from attncheck.simulators.multipliers import DirectMultiplier, Matrices, MatrixFreeMultiplier
from attncheck.simulators.programs import draw_lines

_Described = TypeVar("_Described")
_Drawn = TypeVar("_Drawn", bound=Batch)
WorkOf = Callable[[_Described, int], DrawPlan[_Drawn]]
_MULTIPLIERS: Mapping[str, Matrices] = {
    "direct": DirectMultiplier,
    "matrix-free": MatrixFreeMultiplier,
}


@functools.lru_cache(maxsize=8)
def _plan(stack: AttentionStack) -> tuple[StackProgram, tuple[Step, ...]]:
    expansion = stack.expand()
    return expansion, expansion.program.steps()


def draw_stack_program(
    stack: AttentionStack,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    multiplier: Matrices,
) -> StackDraws:
    """Draw a stack by interpreting its program; ``multiplier(width, rng)`` draws the products W h of its matrices."""
    expansion, steps = _plan(stack)
    keep = {node for layer in expansion.layers for node in layer.inputs}
    norms: dict[Node, Callable[[FloatArray], FloatArray]] = {}
    if stack.layer.norm:
        read = keep.union(*expansion.reads)
        norms |= dict.fromkeys(read, functools.partial(normalised, stack.layer.norm))
    if stack.post_norm:
        after = [node for stream in (*expansion.between, *expansion.streams[1:]) for node in stream]
        norms |= dict.fromkeys(after, functools.partial(normalised, stack.post_norm))
    multiply = multiplier(stack.width, rng)
    values = interpret(steps, stack.width, size, coordinates, keep | set(norms), multiply, rng, normalise=norms)
    inputs = np.stack([values.stack(layer.inputs) for layer in expansion.layers], axis=1)
    streams = np.stack([values.stack(nodes, coordinates) for nodes in expansion.streams], axis=1)
    shape = (size, stack.num_heads, stack.seq_len, stack.seq_len)
    return StackDraws(
        outputs=streams[:, -1].copy(),
        scores=np.stack([values.stack(layer.scores).reshape(shape) for layer in expansion.layers], axis=1),
        streams=streams[:, :-1].copy(),
        grams=gram_of(inputs),
    )


def literal_entries(stack: AttentionStack) -> Entries:
    """Return the memory bounds of a draw of the stack's program."""
    return entries_of(_plan(stack)[0].program, stack.width)


def head_entries(layer: AttentionLayer, coordinates: int) -> int:
    """Return a bound on the array entries per draw of the collapsed method, without vectors of `width` neurons."""
    s, heads = layer.seq_len, layer.num_heads
    return 12 * heads * s**2 + 16 * s + (3 * heads + 6) * s * coordinates + key_entries(layer)


def collapsed_layer(layer: AttentionLayer, coordinates: int) -> DrawPlan[Draws]:
    """Return the plan to draw a layer by the collapsed method."""
    check_coordinates(coordinates, layer.width)
    return DrawPlan(draw_collapsed, layer, coordinates, input_entries(layer) + head_entries(layer, coordinates))


def _literal_layer(layer: AttentionLayer, coordinates: int, method: str) -> DrawPlan[Draws]:
    check_coordinates(coordinates, layer.width)
    entries = vector_entries(layer, coordinates)
    if method == "direct":
        entries = vector_entries(layer, 2 * layer.width) + matrix_entries(layer)
    draw = functools.partial(draw_program, multiplier=_MULTIPLIERS[method])
    return DrawPlan(draw, layer, coordinates, entries, program_entries(layer))


def _literal_stack(stack: AttentionStack, coordinates: int, method: str) -> DrawPlan[StackDraws]:
    check_coordinates(coordinates, stack.width)
    return _literal(draw_stack_program, stack, coordinates, literal_entries(stack), method)


def _literal_program(case: ProgramAt, coordinates: int, method: str) -> DrawPlan[ProgramDraws]:
    shortest = min((node.length(case.width) for node in results_of(case.program)), default=case.width)
    check_coordinates(coordinates, case.width, shortest)
    return _literal(draw_lines, case, coordinates, entries_of(case.program, case.width), method)


def _literal(
    draw: Callable[..., _Drawn], described: Any, coordinates: int, bounds: Entries, method: str
) -> DrawPlan[_Drawn]:
    entries = bounds.lines + (bounds.matrices if method == "direct" else bounds.bases)
    return DrawPlan(functools.partial(draw, multiplier=_MULTIPLIERS[method]), described, coordinates, entries)


def _literals(plan: Callable[..., DrawPlan[Any]]) -> dict[str, WorkOf[Any, Any]]:
    return {name: functools.partial(plan, method=name) for name in _MULTIPLIERS}


FINITE: Mapping[type, Mapping[str, WorkOf[Any, Any]]] = {
    AttentionLayer: {**_literals(_literal_layer), "collapsed": collapsed_layer},
    AttentionStack: _literals(_literal_stack),
    ProgramAt: _literals(_literal_program),
}
