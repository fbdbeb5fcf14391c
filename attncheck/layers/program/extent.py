"""The lines of a program whose values a draw returns, and bounds on the memory that a draw needs."""

from __future__ import annotations

import dataclasses
from collections import Counter

from attncheck.layers.program.lines import Lines
from attncheck.layers.program.nodes import MatMul, Node, Output, Score


def results_of(program: Lines) -> tuple[Node, ...]:
    """Return the outputs of a program or, if it has none, the vectors that no other vector uses.

    Examples
    --------
    >>> from attncheck.layers.program import Program
    >>> program = Program()
    >>> h = program.initial("h")
    >>> g = program.matmul(program.weight("W"), h)
    >>> [node.name for node in results_of(program)]
    ['g1']
    """
    outputs = tuple(node for node in program.lines() if isinstance(node, Output))
    vectors = [node for node in program.nodes if not isinstance(node, Score)]
    used = {parent for node in vectors for parent in node.parents}
    return outputs or tuple(node for node in vectors if node not in used)


def vectors_of(program: Lines) -> tuple[Node, ...]:
    """Return all vectors, outputs included."""
    return tuple(node for node in program.lines() if not isinstance(node, Score))


@dataclasses.dataclass(frozen=True)
class Entries:
    """Upper bounds on the number of array entries per draw, for three kinds of arrays.

    `lines` bounds the values of all lines, `matrices` the explicit matrices of the direct method, and `bases` the bases
    of vectors that the matrix-free method stores.
    """

    lines: int
    matrices: int
    bases: int


def entries_of(program: Lines, width: int) -> Entries:
    """Return the memory bounds of a draw at a width."""
    uses = Counter(node.weight for node in program.nodes if isinstance(node, MatMul))
    sizes = {weight: weight.shape(width) for weight in uses}
    reused = sum(rows * columns for weight, (rows, columns) in sizes.items() if uses[weight] > 1)
    once = max((rows * columns for weight, (rows, columns) in sizes.items() if uses[weight] == 1), default=0)
    bases = sum(uses[weight] * sum(shape) for weight, shape in sizes.items())
    return Entries(sum(2 * node.length(width) for node in program.nodes), reused + once, 2 * bases)
