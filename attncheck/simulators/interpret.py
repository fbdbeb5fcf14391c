"""Run a program step by step; how W h is drawn is what tells the finite-width readings apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attncheck.layers.program import Initial, MatMul, Node, Nonlin, Output, Score, Step, Weight

FloatArray = NDArray[np.float64]

# Stacked values that are kept: those of the inputs, or of the values, beside what changes from head to head.
_KEPT = 2


class Multiplier(Protocol):
    """Draws W h for the uses of each weight, in the order of the steps."""

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        """Map vectors (draws, m, columns) to the first `rows` coordinates of W h, (draws, m, rows).

        ``last`` says that the weight will not be used again.
        """
        ...


class Values:
    """The values of the lines computed so far, each a slice of the array of its step."""

    def __init__(self) -> None:
        self._array: dict[Node, FloatArray] = {}
        self._index: dict[Node, tuple[int, ...]] = {}
        self._stacked: dict[tuple[tuple[Node, ...], int | None], FloatArray] = {}

    def put(self, array: FloatArray, places: Iterable[tuple[Node, tuple[int, ...]]]) -> None:
        """Store ``array[:, *index]`` as the value of each node of `places`."""
        for node, index in places:
            self._array[node] = array
            self._index[node] = index

    def get(self, node: Node) -> FloatArray:
        """Return a node's value: (draws, coordinates) for a vector, (draws,) for a score."""
        value: FloatArray = self._array[node]
        for k in self._index[node]:
            value = value[:, k]
        return value

    def stack(self, nodes: Sequence[Node], cut: int | None = None) -> FloatArray:
        """Return the values of nodes of one shape as (draws, len(nodes), ...), to be read only.

        With `cut`, the first coordinates of vectors, of which some may have no more. Copies are kept for a while:
        every head multiplies the same inputs, and every position the same values.
        """
        key = (tuple(nodes), cut)
        stacked = self._stacked.pop(key, None)
        self._stacked[key] = self._gather(nodes, cut) if stacked is None else stacked
        if len(self._stacked) > _KEPT:
            self._stacked.pop(next(iter(self._stacked)))
        return self._stacked[key]

    def _gather(self, nodes: Sequence[Node], cut: int | None) -> FloatArray:
        first = self._array[nodes[0]]
        alone = all(self._array[node] is first for node in nodes)
        if alone and [self._index[node] for node in nodes] == [(k,) for k in range(first.shape[1])]:
            return first if cut is None else first[:, :, :cut]
        shape = self.get(nodes[0]).shape[1:] if cut is None else (min(cut, self.get(nodes[0]).shape[1]),)
        out = np.empty((len(first), len(nodes), *shape))
        positions: dict[int, list[int]] = {}
        for position, node in enumerate(nodes):
            positions.setdefault(id(self._array[node]), []).append(position)
        for where in positions.values():
            if len(where) == 1:
                value = self.get(nodes[where[0]])
                out[:, where[0]] = value if cut is None else value[..., :cut]
                continue
            index = np.array([self._index[nodes[k]] for k in where])
            array = self._array[nodes[where[0]]]
            out[:, where] = (array if cut is None else array[..., :cut])[(slice(None), *index.T)]
        return out


def interpret(
    steps: Sequence[Step],
    width: int,
    size: int,
    coordinates: int,
    keep: Iterable[Node],
    multiply: Multiplier,
    rng: np.random.Generator,
    turn: Callable[[FloatArray], FloatArray] | None = None,
) -> Values:
    """Draw every line of a program.

    Parameters
    ----------
    steps : sequence of Step
        From `Program.steps`.
    width : int
        n.
    size : int
        Independent draws.
    coordinates : int
        How many neurons to return of outputs that no later line uses.
    keep : iterable of Node
        Lines whose vectors are wanted whole although only such outputs use them.
    multiply : Multiplier
        Draws W h.
    rng : numpy.random.Generator
        For the initial vectors.
    turn : callable, optional
        What becomes of the vectors of each side of scores, (draws, m, length), before they are multiplied.

    Returns
    -------
    Values
    """
    trimmed = _trimmed(steps, keep)
    values = Values()
    for step in steps:
        first = step.nodes[0]
        if isinstance(first, Score):
            _compute_scores(step, width, values, turn)
            continue
        if isinstance(first, Initial):
            array = _draw_initial(step, width, size, rng)
        elif isinstance(first, MatMul):
            rows = coordinates if trimmed.issuperset(step.nodes) else first.length(width)
            vectors = values.stack([node.parents[0] for node in step.nodes])
            array = multiply(first.weight, vectors, rows, step.last)
        elif isinstance(first, Nonlin):
            array = first.function(*(values.get(parent) for parent in first.parents))[:, None]
        elif isinstance(first, Output):
            cut = coordinates if first in trimmed else None
            scores = values.stack(first.scores) if first.scores else np.empty((size, 0))
            array = first.function(values.stack(first.vectors, cut), scores)[:, None]
        values.put(array, ((node, (k,)) for k, node in enumerate(step.nodes)))
    return values


def _trimmed(steps: Sequence[Step], keep: Iterable[Node]) -> set[Node]:
    """Outputs that no line uses, and vectors that only those use: a few neurons of them suffice."""
    nodes = [node for step in steps for node in step.nodes]
    whole = set(keep).union(*(node.parents for node in nodes))
    ends = {node for node in nodes if isinstance(node, Output)} - whole
    whole = set(keep).union(*(node.parents for node in nodes if node not in ends))
    return ends.union(*(end.parents for end in ends)) - whole


def _draw_initial(step: Step, width: int, size: int, rng: np.random.Generator) -> FloatArray:
    nodes = [node for node in step.nodes if isinstance(node, Initial)]
    root = np.array([node.root for node in nodes])
    mean = np.array([node.mean for node in nodes])[:, None]
    return mean + root @ rng.standard_normal((size, len(nodes), width))


def _compute_scores(step: Step, width: int, values: Values, turn: Callable[[FloatArray], FloatArray] | None) -> None:
    """Compute all scores between the vectors of two steps as one matrix product per draw."""
    lefts = list(dict.fromkeys(node.parents[0] for node in step.nodes))
    rights = list(dict.fromkeys(node.parents[1] for node in step.nodes))
    factor = step.nodes[0].factor if isinstance(step.nodes[0], Score) else 1.0
    left, right = values.stack(lefts), values.stack(rights)
    if turn is not None:
        left, right = turn(left), turn(right)
    products = left @ right.swapaxes(-1, -2)
    products *= factor * lefts[0].length(width) ** -0.5
    row = {node: i for i, node in enumerate(lefts)}
    column = {node: j for j, node in enumerate(rights)}
    values.put(products, ((node, (row[node.parents[0]], column[node.parents[1]])) for node in step.nodes))
