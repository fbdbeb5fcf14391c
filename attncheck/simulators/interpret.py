"""Evaluation of a program step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from attncheck._lib.arrays import FloatArray, IndexArray
from attncheck.layers.program import Initial, MatMul, Node, Nonlin, Output, Score, Step
from attncheck.simulators.multipliers import Multiplier

# Number of stacked arrays to cache. Several heads or positions use the same array.
_RETAINED = 2


_Index = tuple[int | slice | IndexArray, ...]


class ProgramLayout:
    """Where the values of each line of a program are stored.

    Each step has one array; the layout has the step of each line, and the line's index in the array of the step. It
    also has the lines of which only some coordinates are computed.
    """

    def __init__(self, steps: Sequence[Step], keep: Iterable[Node]) -> None:
        self.trimmed = _trimmed(steps, keep)
        #: Maps the first node of a step of scores to the left and the right vectors of the scores.
        self.factors: dict[Node, tuple[tuple[Node, ...], tuple[Node, ...]]] = {
            step.nodes[0]: _factors(step) for step in steps if isinstance(step.nodes[0], Score)
        }
        #: Maps each node to the number of its step, and to its index in the array of the step.
        self.place: dict[Node, tuple[int, tuple[int, ...]]] = {}
        for number, step in enumerate(steps):
            indices: Iterable[tuple[int, ...]] = ((k,) for k in range(len(step.nodes)))
            if factors := self.factors.get(step.nodes[0]):
                row, column = ({node: k for k, node in enumerate(side)} for side in factors)
                indices = ((row[node.parents[0]], column[node.parents[1]]) for node in step.nodes)
            self.place |= {node: (number, index) for node, index in zip(step.nodes, indices, strict=True)}
        self._sources: dict[tuple[Node, ...], list[tuple[int, _Index, _Index]]] = {}

    def sources(self, nodes: tuple[Node, ...]) -> list[tuple[int, _Index, _Index]]:
        """Return the steps that compute the nodes, each with indices into `nodes` and into the array of the step."""
        step_indices = self._sources.get(nodes)
        if step_indices is None:
            positions: dict[int, list[int]] = {}
            for position, node in enumerate(nodes):
                positions.setdefault(self.place[node][0], []).append(position)
            step_indices = self._sources[nodes] = [
                (step, _index([(k,) for k in where]), _index([self.place[nodes[k]][1] for k in where]))
                for step, where in positions.items()
            ]
        return step_indices


def _index(positions: Sequence[tuple[int, ...]]) -> _Index:
    """Return an index that selects `positions` in all draws, if possible by a slice, which copies fastest."""
    columns = [list(column) for column in zip(*positions, strict=True)]
    for axis, column in reversed(list(enumerate(columns))):
        run = slice(column[0], column[0] + len(column))
        rest = columns[:axis] + columns[axis + 1 :]
        if column == list(range(run.start, run.stop)) and all(len(set(fixed)) == 1 for fixed in rest):
            return slice(None), *(run if k == axis else c[0] for k, c in enumerate(columns))
    return slice(None), *(np.array(column) for column in columns)


def _factors(step: Step) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the distinct left and right vectors of the scores in a step."""
    lefts, rights = (dict.fromkeys(side) for side in zip(*(node.parents for node in step.nodes), strict=True))
    return tuple(lefts), tuple(rights)


# The layout is cached because all blocks of a layer, and all properties, use the same one.
_layout = functools.lru_cache(maxsize=32)(ProgramLayout)


class Values:
    """Values of the lines computed so far."""

    def __init__(self, layout: ProgramLayout) -> None:
        self._layout = layout
        self._arrays: list[FloatArray] = []
        self._stacked: dict[tuple[tuple[Node, ...], int | None], FloatArray] = {}

    def put(self, array: FloatArray) -> None:
        """Store the array of the next step, (draws, nodes, ...) or, for scores, (draws, lefts, rights)."""
        self._arrays.append(array)

    def get(self, node: Node) -> FloatArray:
        """Return a vector (draws, coordinates) or score (draws,)."""
        step, position = self._layout.place[node]
        index: _Index = (slice(None), *position)
        return self._arrays[step][index]

    def stack(self, nodes: Sequence[Node], cut: int | None = None) -> FloatArray:
        """Return the values of nodes of equal shape in one array, (draws, len(nodes), ...), which must not be modified.

        `cut` is the maximum number of coordinates.
        """
        key = (tuple(nodes), cut)
        stacked = self._stacked.pop(key, None)
        self._stacked[key] = self._gather(*key) if stacked is None else stacked
        if len(self._stacked) > _RETAINED:
            self._stacked.pop(next(iter(self._stacked)))
        return self._stacked[key]

    def _gather(self, nodes: tuple[Node, ...], cut: int | None) -> FloatArray:
        sources = self._layout.sources(nodes)
        step, _, index = sources[0]
        first = self._arrays[step]
        if len(sources) == 1 and isinstance(index[1], slice) and index[1:] == (slice(0, first.shape[1]),):
            return first if cut is None else first[:, :, :cut]
        shape = self.get(nodes[0]).shape[1:] if cut is None else (min(cut, self.get(nodes[0]).shape[1]),)
        out = np.empty((len(first), len(nodes), *shape))
        for step, where, index in sources:
            array = self._arrays[step]
            out[where] = (array if cut is None else array[..., :cut])[index]
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
        Number of neurons to compute of outputs that no later line uses.
    keep : iterable of Node
        Lines to keep at full length, even if no later line uses them.
    multiply : Multiplier
    rng : numpy.random.Generator
    turn : callable, optional
        Function that is applied to the left vectors and to the right vectors of scores, (draws, m, length), before
        they are multiplied.
    normalise : mapping of Node to callable, optional
        Functions that change the array of a line before any use. For a nonlinearity or output, the array is
        (draws, 1, length). For the first score of a step, it is the array of the step, (draws, lefts, rights). `keep`
        must contain the outputs in this mapping.
    """
    layout = _layout(tuple(steps), tuple(keep))
    trimmed, values = layout.trimmed, Values(layout)
    for step in steps:
        first = step.nodes[0]
        if isinstance(first, Score):
            array = _scores(first, *layout.factors[first], width, values, turn)
        elif isinstance(first, Initial):
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
        values.put(normalise[first](array) if first in normalise else array)
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
    one: Score,
    lefts: tuple[Node, ...],
    rights: tuple[Node, ...],
    width: int,
    values: Values,
    turn: Callable[[FloatArray], FloatArray] | None,
) -> FloatArray:
    """Return the scores of all pairs of `lefts` and `rights`, (draws, lefts, rights); `one` is any of these scores."""
    rows, columns = values.stack(lefts), values.stack(rights)
    if turn is not None:
        rows, columns = turn(rows), turn(columns)
    products = rows @ columns.swapaxes(-1, -2)
    products *= one.factor * lefts[0].length(width) ** -0.5
    return products
