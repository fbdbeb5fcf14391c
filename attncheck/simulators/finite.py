"""Finite-width methods: the same law at different costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Batch, Draws, ProgramDraws, StackDraws
from attncheck.layers.program import ProgramAt
from attncheck.layers.program.extent import entries_of, results_of
from attncheck.layers.stack import AttentionStack
from attncheck.simulators import stacks
from attncheck.simulators.blocks import DrawPlan
from attncheck.simulators.collapsed import draw_collapsed, input_entries
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.interpret import Multiplier
from attncheck.simulators.layers import (
    draw_program,
    key_entries,
    matrix_entries,
    program_entries,
    vector_entries,
)
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_lines

_Described = TypeVar("_Described")
_Drawn = TypeVar("_Drawn", bound=Batch)

WorkOf = Callable[[_Described, int], DrawPlan[_Drawn]]

_MULTIPLIERS: Mapping[str, Callable[[int, np.random.Generator], Multiplier]] = {
    "direct": DirectMultiplier,
    "matrix-free": MatrixFreeMultiplier,
}


def head_entries(layer: AttentionLayer, coordinates: int) -> int:
    """Bound the entries per draw, not counting vectors of neurons."""
    s, heads = layer.seq_len, layer.num_heads
    return 12 * heads * s**2 + 16 * s + (3 * heads + 6) * s * coordinates + key_entries(layer)


def collapsed_layer(layer: AttentionLayer, coordinates: int) -> DrawPlan[Draws]:
    """Return the plan of the collapsed method."""
    _check(coordinates, layer.width)

    def draw(count: int, rng: np.random.Generator) -> Draws:
        return draw_collapsed(layer, count, coordinates, rng)

    return DrawPlan(draw, input_entries(layer) + head_entries(layer, coordinates))


def _literal_layer(name: str) -> WorkOf[AttentionLayer, Draws]:
    def method(layer: AttentionLayer, coordinates: int) -> DrawPlan[Draws]:
        _check(coordinates, layer.width)

        def draw(count: int, rng: np.random.Generator) -> Draws:
            return draw_program(layer, count, coordinates, rng, _MULTIPLIERS[name])

        entries = vector_entries(layer, coordinates)
        if name == "direct":
            entries = vector_entries(layer, 2 * layer.width) + matrix_entries(layer)
        return DrawPlan(draw, entries, program_entries(layer))

    return method


def _collapsed_stack(stack: AttentionStack, coordinates: int) -> DrawPlan[StackDraws]:
    _check(coordinates, stack.width)

    def draw(count: int, rng: np.random.Generator) -> StackDraws:
        return stacks.draw_collapsed_stack(stack, count, coordinates, rng)

    return DrawPlan(draw, stacks.collapsed_entries(stack, coordinates))


def _literal_stack(name: str) -> WorkOf[AttentionStack, StackDraws]:
    def method(stack: AttentionStack, coordinates: int) -> DrawPlan[StackDraws]:
        _check(coordinates, stack.width)

        def draw(count: int, rng: np.random.Generator) -> StackDraws:
            return stacks.draw_stack_program(stack, count, coordinates, rng, _MULTIPLIERS[name])

        bounds = stacks.literal_entries(stack)
        return DrawPlan(draw, bounds.lines + (bounds.matrices if name == "direct" else bounds.bases))

    return method


def _literal_program(name: str) -> WorkOf[ProgramAt, ProgramDraws]:
    def method(case: ProgramAt, coordinates: int) -> DrawPlan[ProgramDraws]:
        shortest = min((node.length(case.width) for node in results_of(case.program)), default=case.width)
        _check(coordinates, case.width, shortest)

        def draw(count: int, rng: np.random.Generator) -> ProgramDraws:
            return draw_lines(case.program, case.width, count, coordinates, rng, _MULTIPLIERS[name])

        bounds = entries_of(case.program, case.width)
        return DrawPlan(draw, bounds.lines + (bounds.matrices if name == "direct" else bounds.bases))

    return method


def _check(coordinates: int, width: int, shortest: int | None = None) -> None:
    if coordinates > (width if shortest is None else shortest):
        problem = f"exceeds width={width}" if shortest in (None, width) else f"exceeds {shortest}"
        refuse("coordinates", coordinates, problem, "ask for at most that many neurons")


FINITE: Mapping[type, Mapping[str, WorkOf[Any, Any]]] = {
    AttentionLayer: {**{name: _literal_layer(name) for name in _MULTIPLIERS}, "collapsed": collapsed_layer},
    AttentionStack: {**{name: _literal_stack(name) for name in _MULTIPLIERS}, "collapsed": _collapsed_stack},
    ProgramAt: {name: _literal_program(name) for name in _MULTIPLIERS},
}
