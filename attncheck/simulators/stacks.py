"""Finite-width draws of a stack, from its program."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.draws import StackDraws
from attncheck.layers.norm import normalised
from attncheck.layers.program import Node, Step
from attncheck.layers.program.extent import Entries, entries_of
from attncheck.layers.stack import AttentionStack
from attncheck.layers.stack_program import StackProgram
from attncheck.simulators.interpret import interpret
from attncheck.simulators.linalg import gram_of
from attncheck.simulators.multipliers import Matrices


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
    """Draw a stack by interpreting its program, with weights from ``multiplier(width, rng)``."""
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
