"""Evaluation of a program step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.program import Initial, MatMul, Node, Nonlin, Output, Score, Step
from attncheck.simulators.multipliers import Multiplier


class Values(dict[Node, FloatArray]):
    """Values of the lines computed so far: vectors (draws, coordinates) and scores (draws,)."""

    def stack(self, nodes: Iterable[Node], cut: int | None = None) -> FloatArray:
        """Return the values of nodes of one shape, (draws, nodes, ...); `cut` limits coordinates."""
        return np.stack([self[node] if cut is None else self[node][:, :cut] for node in nodes], axis=1)


def interpret(
    steps: Sequence[Step],
    width: int,
    size: int,
    coordinates: int,
    keep: Iterable[Node],
    multiply: Multiplier,
    rng: np.random.Generator,
    turn: Callable[[FloatArray], FloatArray] | None = None,
    normalise: Mapping[Node, Callable[[FloatArray], FloatArray]] = MappingProxyType({}),
) -> Values:
    """Draw every line of a program.

    Parameters
    ----------
    steps : sequence of Step
    width : int
    size : int
        Independent draws.
    coordinates : int
        Neurons to return of outputs that no later line uses.
    keep : iterable of Node
        Lines to keep at full length, even if no later line uses them.
    multiply : Multiplier
    rng : numpy.random.Generator
    turn : callable, optional
        Applied to the left and to the right vectors of scores, (draws, m, length).
    normalise : mapping of Node to callable, optional
        Applied to the arrays of lines before any use: of nonlinearities and outputs, (draws, 1, length), and of the
        step that a score begins, (draws, lefts, rights). `keep` must contain these outputs.
    """
    trimmed, values = _trimmed(steps, keep), Values()
    for step in steps:
        first = step.nodes[0]
        if isinstance(first, Score):
            values.update(_scores(step, width, values, turn, normalise.get(first)))
            continue
        if isinstance(first, Initial):
            array = _draw_initial(step, width, size, rng)
        elif isinstance(first, MatMul):
            rows = coordinates if trimmed.issuperset(step.nodes) else first.length(width)
            vectors = values.stack([node.parents[0] for node in step.nodes])
            array = multiply(first.weight, vectors, rows, step.last)
        elif isinstance(first, Nonlin):
            array = first.function(*(values[parent] for parent in first.parents))[:, None]
        elif isinstance(first, Output):
            cut = coordinates if first in trimmed else None
            scores = values.stack(first.scores) if first.scores else np.empty((size, 0))
            array = first.function(values.stack(first.vectors, cut), scores)[:, None]
        array = normalise[first](array) if first in normalise else array
        values.update(zip(step.nodes, np.moveaxis(array, 1, 0), strict=True))
    return values


def _trimmed(steps: Sequence[Step], keep: Iterable[Node]) -> set[Node]:
    """Return the lines to truncate: outputs that no line uses, and vectors that only such outputs use."""
    nodes = [node for step in steps for node in step.nodes]
    untrimmed = set(keep).union(*(node.parents for node in nodes))
    ends = {node for node in nodes if isinstance(node, Output)} - untrimmed
    untrimmed = set(keep).union(*(node.parents for node in nodes if node not in ends))
    return ends.union(*(end.parents for end in ends)) - untrimmed


def _draw_initial(step: Step, width: int, size: int, rng: np.random.Generator) -> FloatArray:
    nodes = [node for node in step.nodes if isinstance(node, Initial)]
    root = np.array([node.root for node in nodes])
    mean = np.array([node.mean for node in nodes])[:, None]
    return mean + root @ rng.standard_normal((size, len(nodes), width))


def _scores(
    step: Step,
    width: int,
    values: Values,
    turn: Callable[[FloatArray], FloatArray] | None,
    normalise: Callable[[FloatArray], FloatArray] | None,
) -> dict[Node, FloatArray]:
    """Return the scores of a step, from the products of all its left with all its right vectors."""
    one = step.nodes[0]
    assert isinstance(one, Score)
    lefts, rights = (list(dict.fromkeys(side)) for side in zip(*(node.parents for node in step.nodes), strict=True))
    rows, columns = values.stack(lefts), values.stack(rights)
    if turn is not None:
        rows, columns = turn(rows), turn(columns)
    products = rows @ columns.swapaxes(-1, -2)
    products *= one.factor * lefts[0].length(width) ** -0.5
    if normalise is not None:
        products = normalise(products)
    row, column = ({node: index for index, node in enumerate(side)} for side in (lefts, rights))
    return {node: products[:, row[node.parents[0]], column[node.parents[1]]] for node in step.nodes}
