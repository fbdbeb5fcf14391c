"""The lines of a Netsor program with dot-product scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError, check_integer, check_number, refuse
from attncheck.layers.program.functions import Coordinatewise, PerArgumentFunction, StackedFunction, name_of, tried
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Output, Score, Step, Weight

# Trial arguments of both signs. When a line is written, its function is called with them.
_TRIAL = np.linspace(-1.5, 1.0, 6).reshape(2, 3)
_TRIAL.flags.writeable = False  # catches functions that modify their arguments


class Lines:
    """The weights and lines of a program in the order written; see `Program`."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._known: set[Node] = set()
        self._names: set[str] = set()
        self._weights: list[Weight] = []
        self._groups = 0
        self._counters: dict[str, Iterator[int]] = {}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All lines, in order."""
        return tuple(self._nodes)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All matrices, in order."""
        return tuple(self._weights)

    def initial(self, name: str, mean: float = 0.0, std: float = 1.0) -> Node:
        """Write an initial vector with i.i.d. N(mean, std²) coordinates."""
        variance = check_number("std", std, "pass a standard deviation, e.g. std=1.0", minimum=0.0) ** 2
        return self.initials([name], [mean], [[variance]])[0]

    def initials(self, names: Sequence[str], mean: Sequence[float], cov: Any) -> tuple[Node, ...]:
        """Write jointly Gaussian initial vectors.

        The coordinates of the vectors with the same index have the law N(mean, cov), and different indices are
        independent.

        Parameters
        ----------
        names : sequence of str, length m
        mean : sequence of float, length m
        cov : array_like, shape (m, m)
            Positive semi-definite.

        Raises
        ------
        InputError
            If shapes differ, or `cov` is not a covariance matrix.
        """
        try:
            matrix = np.asarray(cov, dtype=np.float64)
        except (TypeError, ValueError):
            refuse("cov", cov, "must be a matrix of numbers", "pass a covariance matrix")
        count = len(names)
        if matrix.shape != (count, count) or len(mean) != count:
            refuse(
                "cov",
                matrix.shape,
                f"must be ({count}, {count}), with a mean of length {count}",
                "match the names",
            )
        if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T):
            refuse("cov", matrix.tolist(), "must be finite and symmetric", "pass a covariance matrix")
        values, vectors = np.linalg.eigh(matrix)
        if count and values[0] < -1e-10 * max(values[-1], 1.0):
            refuse("cov", matrix.tolist(), "has a negative eigenvalue", "pass a covariance matrix")
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        means = [check_number("mean", m, "pass a number") for m in mean]
        self._groups += 1
        rows = tuple(map(tuple, matrix.tolist()))
        return tuple(
            self._write(Initial(name, (), None, self._groups, m, tuple(row), rows))
            for name, m, row in zip(names, means, root.tolist(), strict=True)
        )

    def weight(self, name: str, std: float = 1.0, rows: int | None = None, columns: int | None = None) -> Weight:
        """Declare a matrix with i.i.d. N(0, std²/columns) entries; sizes default to the width."""
        for field, value in (("rows", rows), ("columns", columns)):
            if value is not None:
                check_integer(field, value, 1, "pass a size, or None for the width")
        if any(w.name == name for w in self._weights):
            remedy = "give each matrix its own name, or use that weight"
            refuse("name", name, "is the name of another weight", remedy)
        weight = Weight(name, check_number("std", std, "pass a standard deviation", minimum=0.0), rows, columns)
        self._weights.append(weight)
        return weight

    def matmul(self, weight: Weight, vector: Node, name: str | None = None) -> Node:
        """Write the product W h of the matrix `weight`, W, and `vector`, h."""
        self._know(vector)
        if not any(w is weight for w in self._weights):
            refuse("weight", weight, "is not a weight of this program", "declare it with program.weight(...)")
        if isinstance(vector, Score):
            refuse("vector", vector.name, "is a score, not a vector", "apply the matrix to a vector")
        if weight.columns != vector.size:
            sizes = f"has {weight.columns or 'n'} columns, but {vector.name} has {vector.size or 'n'} coordinates"
            refuse("weight", weight.name, sizes, f"declare it with columns={vector.size}")
        return self._write(MatMul(name or self._fresh("g"), (vector,), weight.rows, weight))

    def nonlin(self, function: Coordinatewise, *vectors: Node, name: str | None = None) -> Node:
        """Write φ(h¹, …, hᵐ); `function` takes one array per vector."""
        size = self._common_size(vectors)
        tried(function, [_TRIAL] * len(vectors), _TRIAL.shape)
        return self._write(Nonlin(name or self._fresh("x"), tuple(vectors), size, function))

    def score(self, left: Node, right: Node, factor: float = 1.0, name: str | None = None) -> Node:
        """Write the score factor · ν^{-1/2} leftᵀ right of two vectors with ν coordinates, both outputs of MatMuls."""
        for side in (left, right):
            self._know(side)
            if not isinstance(side, MatMul):
                refuse("score", side.name, "is not the output of a MatMul", "take the score of two vectors W x")
        self._common_size((left, right))
        factor = check_number("factor", factor, "pass a number, e.g. factor=1.0")
        return self._write(Score(name or self._fresh("p"), (left, right), 1, factor))

    def output(
        self,
        function: Coordinatewise | StackedFunction,
        vectors: Sequence[Node],
        scores: Sequence[Node] = (),
        name: str | None = None,
    ) -> Node:
        """Write an output φ(g¹, …, gᵐ, p_1, …, p_r), coordinate by coordinate (Theorem 1).

        Parameters
        ----------
        function : callable
            Maps one array (draws, coordinates) per vector, then one (draws, 1) per score, to (draws, coordinates).
        vectors : sequence of Node
        scores : sequence of Node, optional
        name : str, optional

        Examples
        --------
        >>> program = Lines()
        >>> h = program.initial("h")
        >>> Q, K, V = (program.matmul(program.weight(name), h) for name in "QKV")
        >>> a = program.score(Q, K)
        >>> program.output(lambda v, a: np.tanh(a) * v, vectors=[V], scores=[a]).name
        'y1'
        """
        size = self._common_size(vectors)
        for score in scores:
            self._know(score)
            if not isinstance(score, Score):
                refuse("scores", score.name, "is a vector, not a score", "list vectors under vectors")
        if not isinstance(function, StackedFunction):
            tried(function, [_TRIAL] * len(vectors) + [_TRIAL[:, :1]] * len(scores), _TRIAL.shape)
            function = PerArgumentFunction(function)
        parents = (*vectors, *scores)
        return self._write(Output(name or self._fresh("y"), parents, size, function, len(vectors)))

    def lines(self) -> tuple[Node, ...]:
        """Return all lines, in order; raise `InputError` if there are none."""
        if not self._nodes:
            refuse("program", self, "has no lines", "write some first, e.g. program.initial('h')")
        return self.nodes

    def steps(self) -> tuple[Step, ...]:
        """Group lines that can be computed together into steps, in order of computation.

        A step holds products with the same matrix, scores of vectors from the same two steps with equal factors,
        initial vectors drawn together, or one other line.
        """
        where: dict[Node, int] = {}
        latest: dict[tuple[Any, ...], int] = {}
        groups: list[list[Node]] = []
        for node in self._nodes:
            key = _step_key(node, where)
            after = max((where[parent] for parent in node.parents), default=-1)
            if latest.get(key, -1) <= after:
                latest[key] = len(groups)
                groups.append([])
            where[node] = latest[key]
            groups[where[node]].append(node)
        final = {group[0].weight: i for i, group in enumerate(groups) if isinstance(group[0], MatMul)}
        return tuple(
            Step(tuple(group), not isinstance(group[0], MatMul) or final[group[0].weight] == i)
            for i, group in enumerate(groups)
        )

    def __str__(self) -> str:
        return "\n".join(line_text(node) for node in self._nodes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._nodes)} lines and {len(self._weights)} weights>\n{self}"

    def _write(self, node: Node) -> Node:
        name: object = node.name
        if not isinstance(name, str) or not name:
            refuse("name", node.name, "is not a valid line name", "pass text, e.g. name='x'")
        if node.name in self._names:
            refuse("name", node.name, "is the name of another line", "give each line its own name")
        self._names.add(node.name)
        self._known.add(node)
        self._nodes.append(node)
        return node

    def _fresh(self, prefix: str) -> str:
        numbers = self._counters.setdefault(prefix, itertools.count(1))
        return next(name for k in numbers if (name := f"{prefix}{k}") not in self._names)

    def _know(self, node: Node) -> None:
        if not isinstance(node, Node):
            refuse("node", node, "is not a line of a program", "use nodes that the program's methods returned")
        if node not in self._known:
            refuse("node", node.name, "is not a line of this program", "use nodes that the program's methods returned")

    def _common_size(self, vectors: Sequence[Node]) -> int | None:
        if not vectors:
            raise InputError("vectors=(): a coordinatewise function needs at least one vector; pass the nodes it takes")
        for vector in vectors:
            self._know(vector)
            if isinstance(vector, Score):
                refuse("vectors", vector.name, "is a score, not a vector", "pass scores to program.output")
            if vector.size != vectors[0].size:
                refuse("vectors", vector.name, "differs in size from the others", "combine vectors of one size")
        return vectors[0].size


def _step_key(node: Node, where: dict[Node, int]) -> tuple[Any, ...]:
    """Return a key that is equal for lines that can share a step.

    `where` maps each earlier line to the number of its step.
    """
    if isinstance(node, MatMul):
        return ("matmul", node.weight)
    if isinstance(node, Score):
        return ("score", where[node.parents[0]], where[node.parents[1]], node.factor)
    if isinstance(node, Initial):
        return ("initial", node.group)
    return ("alone", id(node))


def line_text(node: Node) -> str:
    """Return a line as a program prints it, such as ``g1 = W h``."""
    names = ", ".join(parent.name for parent in node.parents)
    size = str(node.parents[0].size or "n") if node.parents else "n"
    if isinstance(node, Initial):
        return f"{node.name} ~ N({node.mean:g}, {sum(r * r for r in node.root):g})"
    if isinstance(node, MatMul):
        return f"{node.name} = {node.weight.name} {names}"
    if isinstance(node, Score):
        factor = "" if node.factor == 1.0 else f"{node.factor:g} "
        return f"{node.name} = {factor}<{names}> / sqrt({size})"
    if isinstance(node, Nonlin | Output):
        return f"{node.name} = {name_of(node.function)}({names})"
    raise TypeError(node)
