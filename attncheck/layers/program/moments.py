"""Second moments of a program's limit variables, by Definition 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.expectation import expectation
from attncheck.layers.nonlinearity import Nonlinearity
from attncheck.layers.program.functions import LinearCombination
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Output, Score

# A linear combination of Gaussian lines: maps each line to its coefficient.
_Linear = dict[Node, float]


class Moments:
    """Moments of Gaussian lines, and of functions of these lines, which are computed when they are needed."""

    def __init__(self) -> None:
        self.place: dict[Node, int] = {}
        self.covariance = np.zeros((0, 0))
        self.error = 0.0
        self._known: dict[frozenset[Node], float] = {}

    def add(self, node: Node) -> None:
        """Add a row and a column for `node` to the covariance, by Definition 1 (i) and (ii) of the paper."""
        row = [self._with(node, earlier) for earlier in self.place]
        variance = self._with(node, node)
        self.place[node] = len(self.place)
        size = len(self.place)
        grown = np.empty((size, size))
        grown[:-1, :-1], grown[-1, :-1], grown[:-1, -1], grown[-1, -1] = self.covariance, row, row, variance
        self.covariance = grown

    def _with(self, one: Node, two: Node) -> float:
        if isinstance(one, Initial) and isinstance(two, Initial):
            return float(np.dot(one.root, two.root)) if one.group == two.group else 0.0
        if isinstance(one, MatMul) and isinstance(two, MatMul) and one.weight is two.weight:
            return one.weight.std**2 * self.second(one.parents[0], two.parents[0])
        return 0.0

    def second(self, one: Node, two: Node) -> float:
        """Return E[Z^x Z^x'] for two lines x = `one` and x' = `two` that do not depend on scores.

        Z^x and Z^x' are the limit variables of the lines.
        """
        key = frozenset((one, two))
        if key not in self._known:
            value, error = self._second(one, two)
            self._known[key], self.error = value, max(self.error, error)
        return self._known[key]

    def _second(self, one: Node, two: Node) -> tuple[float, float]:
        first, second = _linear(one), _linear(two)
        if first is not None and second is not None:
            return self._cov(first, second) + _mean(first) * _mean(second), 0.0
        inner = self._same_function(one, two)
        if inner is not None:
            function, a, b = inner
            value, error = function.dual(self._cov(a, a), self._cov(b, b), self._cov(a, b))
            return float(value), float(error)
        bases = bases_of((one, two))
        indices = [self.place[node] for node in bases]

        def product(z: FloatArray) -> FloatArray:
            known = dict(zip(bases, z, strict=True))
            return value_of(one, known, {}) * value_of(two, known, {})

        mean = np.array([node.mean if isinstance(node, Initial) else 0.0 for node in bases])
        return expectation(product, mean, self.covariance[np.ix_(indices, indices)])

    def _same_function(self, one: Node, two: Node) -> tuple[Nonlinearity, _Linear, _Linear] | None:
        """Return (φ, a, b) if the lines are `one` = φ(a) and `two` = φ(b), with a and b centred and Gaussian.

        For all other lines, return None.
        """
        if not (isinstance(one, Nonlin) and isinstance(two, Nonlin) and len(one.parents) == len(two.parents) == 1):
            return None
        function = one.function
        if not isinstance(function, Nonlinearity) or function != two.function:
            return None
        a, b = _linear(one.parents[0]), _linear(two.parents[0])
        if a is None or b is None or _mean(a) or _mean(b):
            return None
        return function, a, b

    def _cov(self, first: _Linear, second: _Linear) -> float:
        pairs = ((c * d, self.place[g], self.place[h]) for g, c in first.items() for h, d in second.items())
        return float(sum(product * self.covariance[i, j] for product, i, j in pairs))


def _linear(node: Node) -> _Linear | None:
    """Return a line as a linear combination of Gaussian lines, or None if it is not one."""
    if isinstance(node, Initial | MatMul):
        return {node: 1.0}
    if isinstance(node, Nonlin) and isinstance(node.function, LinearCombination):
        total: _Linear = {}
        for coefficient, parent in zip(node.function.coefficients, node.parents, strict=True):
            part = _linear(parent)
            if part is None:
                return None
            for line, value in part.items():
                total[line] = total.get(line, 0.0) + coefficient * value
        return total
    return None


def _mean(combination: _Linear) -> float:
    return sum(c * node.mean for node, c in combination.items() if isinstance(node, Initial))


def bases_of(nodes: Sequence[Node]) -> list[Node]:
    """Return the Gaussian lines that `nodes` depend on, without duplicates, in a reproducible order."""
    return [node for node in ancestors_of(nodes, (Initial, MatMul, Score)) if isinstance(node, Initial | MatMul)]


def ancestors_of(nodes: Sequence[Node], ends: tuple[type[Node], ...] = ()) -> list[Node]:
    """Return lines and their ancestors, without duplicates.

    Ancestors of a line whose class is in `ends` are left out.
    """
    ancestors: dict[Node, None] = {}
    waiting = list(reversed(nodes))
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors[node] = None
            if not isinstance(node, ends):
                waiting += reversed(node.parents)
    return list(ancestors)


def value_of(node: Node, known: Mapping[Node, FloatArray], scores: Mapping[Node, FloatArray]) -> FloatArray:
    """Return the value of a line, computed from Gaussian lines and scores (Definition 1 (iii), Theorem 1).

    `known` contains the values of the Gaussian lines on which the line depends, and `scores` the values of the scores.
    """
    values = dict(known)

    def value(line: Node) -> FloatArray:
        if line not in values:
            values[line] = computed(line)
        return values[line]

    def computed(line: Node) -> FloatArray:
        if isinstance(line, Nonlin):
            return np.asarray(line.function(*map(value, line.parents)))
        assert isinstance(line, Output)
        vectors = np.stack([value(vector) for vector in line.vectors], axis=1)
        columns = [scores[score] for score in line.scores]
        return line.function(vectors, np.stack(columns, axis=-1) if columns else np.empty((len(vectors), 0)))

    return value(node)
