"""Lines of a program, and their matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from attncheck.layers.program.functions import Coordinatewise, StackedFunction


@dataclasses.dataclass(frozen=True)
class Weight:
    """A random matrix with i.i.d. N(0, std²/columns) entries; matrices of different names are independent.

    `rows` and `columns` may be None, which stands for the width n.
    """

    name: str
    std: float
    rows: int | None = None
    columns: int | None = None

    def shape(self, width: int) -> tuple[int, int]:
        """Return (rows, columns) at this width."""
        return self.rows or width, self.columns or width


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Node:
    """A line of the program: a vector or a score. Compared by identity."""

    name: str
    parents: tuple[Node, ...]
    size: int | None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def length(self, width: int) -> int:
        """Return the number of coordinates at this width (1 for a score)."""
        return self.size or width


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Initial(Node):
    """One vector of a group of jointly Gaussian initial vectors.

    `covariance` is the covariance matrix of the group, and `root` this vector's row of a square root of the matrix.
    """

    group: int
    mean: float
    root: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MatMul(Node):
    """Product W h of a matrix and a vector."""

    weight: Weight


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Nonlin(Node):
    """Vector φ(h¹, …, hᵐ), with φ applied coordinate by coordinate."""

    function: Coordinatewise


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Score(Node):
    """Score ν^{-1/2} g¹ᵀ g² times `factor`, with ν the size of g¹ and g²."""

    factor: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Output(Node):
    """Output φ(g¹, …, gᵐ, p_1, …, p_r), coordinate by coordinate; parents are the vectors, then the scores."""

    function: StackedFunction
    num_vectors: int

    @property
    def vectors(self) -> tuple[Node, ...]:
        """The vector arguments of φ."""
        return self.parents[: self.num_vectors]

    @property
    def scores(self) -> tuple[Node, ...]:
        """The score arguments of φ."""
        return self.parents[self.num_vectors :]


def defined_by(nodes: Iterable[Node], starts: Callable[[Node], bool]) -> set[Node]:
    """Return the nodes that satisfy `starts`, and their descendants; `nodes` must be in program order."""
    descendants: set[Node] = set()
    for node in nodes:
        if starts(node) or any(parent in descendants for parent in node.parents):
            descendants.add(node)
    return descendants


@dataclasses.dataclass(frozen=True)
class Step:
    """Nodes of one kind that are computed together; MatMuls share a weight.

    ``last`` is True if no later step uses the weight.
    """

    nodes: tuple[Node, ...]
    last: bool = True
