"""Finite-width methods: the same law at different costs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Batch, Draws, ProgramDraws, StackDraws
from attncheck.layers.program import ProgramAt
from attncheck.layers.program.extent import Entries, entries_of, results_of
from attncheck.layers.stack import AttentionStack
from attncheck.simulators import stacks
from attncheck.simulators.blocks import DrawPlan, check_coordinates
from attncheck.simulators.collapsed import draw_collapsed, input_entries
from attncheck.simulators.layers import draw_program, key_entries, matrix_entries, program_entries, vector_entries
from attncheck.simulators.multipliers import DirectMultiplier, Matrices, MatrixFreeMultiplier
from attncheck.simulators.programs import draw_lines

_Described = TypeVar("_Described")
_Drawn = TypeVar("_Drawn", bound=Batch)

WorkOf = Callable[[_Described, int], DrawPlan[_Drawn]]

_MULTIPLIERS: Mapping[str, Matrices] = {
    "direct": DirectMultiplier,
    "matrix-free": MatrixFreeMultiplier,
}


def head_entries(layer: AttentionLayer, coordinates: int) -> int:
    """Return a bound on the array entries per draw, without vectors of `width` neurons."""
    s, heads = layer.seq_len, layer.num_heads
    return 12 * heads * s**2 + 16 * s + (3 * heads + 6) * s * coordinates + key_entries(layer)


def collapsed_layer(layer: AttentionLayer, coordinates: int) -> DrawPlan[Draws]:
    """Return the plan of the collapsed method."""
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
    return _literal(stacks.draw_stack_program, stack, coordinates, stacks.literal_entries(stack), method)


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
