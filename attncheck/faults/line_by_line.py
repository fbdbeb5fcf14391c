"""A correct simulator of programs with replaceable steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.program import Initial, MatMul, Node, Nonlin, Output, Program, Score
from attncheck.layers.program.extent import vectors_of
from attncheck.simulators.multipliers import Matrices, MatrixFreeMultiplier
from attncheck.simulators.programs import exposed


def jointly_gaussian(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    """Return a group of initial vectors from independent normals, both (draws, vectors, neurons)."""
    mean = np.array([node.mean for node in group])[:, None]
    return np.asarray(mean + np.array([node.root for node in group]) @ normals)


def coordinatewise(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    """Apply the function of a `Nonlin`."""
    return np.asarray(node.function(*vectors))


def dot_product(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    """Return a score, (draws,)."""
    return np.asarray(node.factor * first.shape[-1] ** -0.5 * (first * second).sum(axis=-1))


def mixture(node: Output, vectors: FloatArray, scores: FloatArray) -> FloatArray:
    """Apply an output's function to vectors (draws, vectors, neurons) and scores (draws, scores)."""
    return np.asarray(node.function(vectors, scores))


@dataclasses.dataclass(frozen=True)
class LineByLineSimulator:
    """A simulator of programs with replaceable steps; the defaults are correct.

    Attributes
    ----------
    matrices : callable
        ``matrices(width, rng)`` returns a function that draws the images W h of vectors h.
    begin : callable
        Returns a group of initial vectors from independent normals.
    map : callable
        Applies the function of a `Nonlin`.
    score : callable
        Returns the score of two vectors.
    mix : callable
        Applies the function of an output.
    """

    matrices: Matrices = MatrixFreeMultiplier
    begin: Callable[[Sequence[Initial], FloatArray], FloatArray] = jointly_gaussian
    map: Callable[[Nonlin, Sequence[FloatArray]], FloatArray] = coordinatewise
    score: Callable[[Score, FloatArray, FloatArray], FloatArray] = dot_product
    mix: Callable[[Output, FloatArray, FloatArray], FloatArray] = mixture

    def __call__(self, program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw every line and return all fields."""
        values: dict[Node, FloatArray] = {}
        last = {node.weight: node for node in program.lines() if isinstance(node, MatMul)}
        multiply = self.matrices(width, rng)
        for node in program.nodes:
            arguments = [values[parent] for parent in node.parents]
            if isinstance(node, Initial) and node not in values:
                group = [n for n in program.nodes if isinstance(n, Initial) and n.group == node.group]
                vectors = self.begin(group, rng.standard_normal((size, len(group), width)))
                values |= dict(zip(group, np.moveaxis(vectors, 1, 0), strict=True))
            elif isinstance(node, MatMul):
                rows, final = node.length(width), node is last[node.weight]
                values[node] = multiply(node.weight, arguments[0][:, None], rows, final)[:, 0]
            elif isinstance(node, Nonlin):
                values[node] = self.map(node, arguments)
            elif isinstance(node, Score):
                values[node] = self.score(node, *arguments)
            elif isinstance(node, Output):
                vectors = np.stack(arguments[: node.num_vectors], axis=1)
                values[node] = self.mix(node, vectors, _columns(arguments[node.num_vectors :], size))
        coordinates = min(2, *(node.length(width) for node in vectors_of(program)))
        return exposed(program, width, size, coordinates, values.__getitem__).as_dict()


def _columns(scores: Sequence[FloatArray], size: int) -> FloatArray:
    return np.stack(scores, axis=1) if scores else np.empty((size, 0))
