"""Draws of a program at a width."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.draws import ProgramDraws
from attncheck.layers.program import Node, Output, Program, ProgramAt, Score
from attncheck.layers.program.extent import results_of, vectors_of
from attncheck.simulators.interpret import interpret
from attncheck.simulators.linalg import gram_of
from attncheck.simulators.multipliers import Matrices


def draw_lines(
    case: ProgramAt, size: int, coordinates: int, rng: np.random.Generator, multiplier: Matrices
) -> ProgramDraws:
    """Draw the results and scores of a program at one width; ``multiplier(width, rng)`` draws the products W h.

    `coordinates` is at most the length of every result.
    """
    program, width = case.program, case.width
    results = results_of(program)
    vectors = [node for node in results if not isinstance(node, Output)]
    values = interpret(program.steps(), width, size, coordinates, vectors, multiplier(width, rng), rng)
    outputs = np.stack([values.get(node)[:, :coordinates] for node in results], axis=1)
    return ProgramDraws(outputs=outputs, scores=_scores_of(program, size, values.get))


def draw_exposed(
    program: Program,
    width: int,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    multiplier: Matrices,
) -> ProgramDraws:
    """Draw a program with all of its vectors and their Gram matrix."""
    values = interpret(program.steps(), width, size, coordinates, vectors_of(program), multiplier(width, rng), rng)
    return exposed(program, width, size, coordinates, values.get)


def exposed(
    program: Program, width: int, size: int, coordinates: int, value: Callable[[Node], FloatArray]
) -> ProgramDraws:
    """Return results, scores, vectors and their Gram matrix; `value` returns a vector (size, n) or score (size,)."""
    lines = vectors_of(program)
    gram = np.zeros((size, len(lines), len(lines)))
    for length in {node.length(width) for node in lines}:
        same = [k for k, node in enumerate(lines) if node.length(width) == length]
        stacked = np.stack([value(lines[k]) for k in same], axis=1)
        gram[:, np.array(same)[:, None], same] = gram_of(stacked)
    vectors = np.stack([value(node)[:, :coordinates] for node in lines], axis=1)
    return ProgramDraws(
        outputs=vectors[:, [lines.index(node) for node in results_of(program)]],
        scores=_scores_of(program, size, value),
        vectors=vectors,
        gram=gram,
    )


def _scores_of(program: Program, size: int, value: Callable[[Node], FloatArray]) -> FloatArray:
    scores = [value(node) for node in program.nodes if isinstance(node, Score)]
    return np.stack(scores, axis=1) if scores else np.empty((size, 0))
