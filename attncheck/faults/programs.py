"""Known-wrong simulators of programs: a correct one, with one of its steps replaced.

Every fault is a subject: ``attncheck.check("attncheck.faults.programs:tied_matrices", program)``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.faults.fault import Fault, declared
from attncheck.layers.program import Initial, LinearCombination, MatMul, Node, Nonlin, Output, Program, Score, Weight
from attncheck.layers.program import requirements as need
from attncheck.layers.program.extent import vectors_of
from attncheck.simulators.multipliers import Matrices, MatrixFreeMultiplier, Multiplier
from attncheck.simulators.programs import exposed
from attncheck.theory.limits.programs import limit_of_program

# Shifts added to vectors whose coordinates have standard deviation about 1.
_SHIFT, _INITIAL_SHIFT = 0.2, 0.5
# Standard deviation of the logarithm of the random factor that multiplies a matrix in each draw.
_SPREAD = 0.3


def jointly_gaussian(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    """Return the jointly Gaussian initial vectors of a group, computed from independent `normals` of the same shape.

    The shape is (draws, vectors, neurons).
    """
    mean = np.array([node.mean for node in group])[:, None]
    return np.asarray(mean + np.array([node.root for node in group]) @ normals)


def coordinatewise(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    """Apply the function of a `Nonlin`."""
    return np.asarray(node.function(*vectors))


def dot_product(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the score of two vectors, both (draws, neurons), as an array (draws,)."""
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
        ``matrices(width, rng)`` returns a function that draws the products W h of a weight W with vectors h.
    image : callable
        Maps the drawn products W h to those that later lines use; by default the products are unchanged.
    begin : callable
        Maps a group of initial lines, and independent normals, to the initial vectors of the group.
    map : callable
        Applies the function of a `Nonlin`.
    score : callable
        Returns the score of two vectors.
    mix : callable
        Applies the function of an output.
    """

    matrices: Matrices = MatrixFreeMultiplier
    image: Callable[[FloatArray], FloatArray] = lambda image: image
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
                values[node] = self.image(multiply(node.weight, arguments[0][:, None], rows, final)[:, 0])
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


def _alone(index: int, node: Initial) -> tuple[float, ...]:
    spread = node.covariance[index][index] ** 0.5
    return tuple(spread if k == index else 0.0 for k in range(len(node.root)))


_FAULTS: list[Fault] = []
_declared = functools.partial(declared, _FAULTS, simulator=LineByLineSimulator)


@_declared(f"{_INITIAL_SHIFT:g} is added to initial vectors", need.RANDOM_START, step="begin")
def _shifted_initials(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    return jointly_gaussian(group, normals) + _INITIAL_SHIFT


@_declared("initial vectors are independent where they should be correlated", need.CORRELATED_START, step="begin")
def _independent_initials(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    """Draw the initial vectors of a group independently of each other, with their declared variances."""
    return jointly_gaussian([dataclasses.replace(node, root=_alone(k, node)) for k, node in enumerate(group)], normals)


@_declared("the standard deviation of every matrix is 5% too large", need.SOME_MATRIX, step="image")
def _matrix_std_5(images: FloatArray) -> FloatArray:
    return 1.05 * images


@_declared(f"{_SHIFT:g} is added to every product of a matrix and a vector", need.SOME_MATRIX, step="image")
def _biased_matmuls(images: FloatArray) -> FloatArray:
    return images + _SHIFT


@_declared("a matrix is drawn afresh at every use", need.REUSED_MATRIX, step="matrices")
def _fresh_matrices(width: int, rng: np.random.Generator) -> Multiplier:
    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        return MatrixFreeMultiplier(width, rng)(weight, vectors, rows, True)

    return multiply


@_declared("all matrices of one shape are one matrix", need.SIDE_BY_SIDE, step="matrices")
def _tied_matrices(width: int, rng: np.random.Generator) -> Multiplier:
    multiplier = MatrixFreeMultiplier(width, rng)

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        # The multiplier uses one matrix for weights with equal fields, so give all weights one name and one std.
        return weight.std * multiplier(Weight("", 1.0, weight.rows, weight.columns), vectors, rows, False)

    return multiply


@_declared("a matrix multiplies the vector meant for the matrix before it", need.MOVING_VECTORS, step="matrices")
def _stale_vectors(width: int, rng: np.random.Generator) -> Multiplier:
    multiplier, previous = MatrixFreeMultiplier(width, rng), dict[int, FloatArray]()

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        stale = previous.get(vectors.shape[-1], vectors)
        previous[vectors.shape[-1]] = vectors
        return multiplier(weight, stale, rows, last)

    return multiply


@_declared("all draws of a call share their matrices", need.SOME_MATRIX, step="matrices")
def _matrices_of_a_call(width: int, rng: np.random.Generator) -> Multiplier:
    matrices: dict[Weight, FloatArray] = {}

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        if weight not in matrices:
            matrices[weight] = rng.standard_normal(weight.shape(width))
        scale = weight.std * vectors.shape[-1] ** -0.5
        return np.asarray(scale * vectors @ matrices[weight][:rows].T)

    return multiply


@_declared("vectors have 2n coordinates", need.SOME_MATRIX)
def _twice_as_wide(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    return LineByLineSimulator()(program, 2 * width, size, rng)


@_declared("tanh takes the place of every other nonlinearity", need.NOT_TANH, step="map")
def _always_tanh(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return np.tanh(vectors[0]) if need.replaceable(node) else coordinatewise(node, vectors)


@_declared("sums of vectors consist of the first vector only", need.SOME_SUM, step="map")
def _first_term(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    if not isinstance(node.function, LinearCombination):
        return coordinatewise(node, vectors)
    return np.asarray(node.function.coefficients[0] * vectors[0])


@_declared("results of nonlinearities are rounded to float16", need.SOME_NONLINEARITY, step="map")
def _half_precision(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return coordinatewise(node, vectors).astype(np.float16).astype(np.float64)


@_declared(
    "each matrix has a standard deviation that changes from draw to draw, and is right on average",
    need.SOME_MATRIX,
    step="matrices",
)
def _wandering_scale(width: int, rng: np.random.Generator) -> Multiplier:
    """Return a multiplier that, in each draw, multiplies each matrix by a random factor with mean square 1."""
    multiplier = MatrixFreeMultiplier(width, rng)
    scales: dict[Weight, FloatArray] = {}

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        if weight not in scales:
            scales[weight] = np.exp(_SPREAD * rng.standard_normal((len(vectors), 1, 1)) - _SPREAD**2)
        return scales[weight] * multiplier(weight, vectors, rows, last)

    return multiply


@_declared("matrices have blocks of √n equal rows", need.SOME_MATRIX, step="image")
def _equal_rows(images: FloatArray) -> FloatArray:
    """Replace each block of √n coordinates of the products W h by the first one, as if these rows of W were equal."""
    rows = images.shape[-1]
    block = max(1, round(rows**0.5))
    return images[..., np.arange(rows) // block * block]


@_declared("scores are divided by n where √n is declared", need.SOME_SCORE, step="score")
def _scores_over_n(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return np.asarray(first.shape[-1] ** -0.5 * dot_product(node, first, second))


@_declared("scores are 5% too large", need.SOME_SCORE, step="score")
def _scores_5(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return 1.05 * dot_product(node, first, second)


@_declared("the first coordinates of its two vectors are added to each score", need.SOME_SCORE, step="score")
def _leaking_neuron(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return dot_product(node, first, second) + first[:, 0] + second[:, 0]


@_declared("scores, and the outputs computed from them, are those of another draw", need.SOME_SCORE, step="score")
def _scores_of_another_draw(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return np.roll(dot_product(node, first, second), 1)


@_declared("scores are drawn from the limit, whatever the vectors are", need.LIMIT_OF_SCORES)
def _limit_scores(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    law = limit_of_program(program)
    scores = dict(zip(law.scores, law.draw(size, 1, rng).scores.T, strict=True))
    return LineByLineSimulator(score=lambda node, first, second: scores[node])(program, width, size, rng)


@_declared("the last score is a copy of the first", need.SEVERAL_SCORES)
def _copied_score(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    drawn = dict(LineByLineSimulator()(program, width, size, rng))
    drawn["scores"][:, -1:] = drawn["scores"][:, :1]
    return drawn


@_declared("outputs use the scores of another draw", need.MIXED_OUTPUT, step="mix")
def _outputs_apart(node: Output, vectors: FloatArray, scores: FloatArray) -> FloatArray:
    return mixture(node, vectors, np.roll(scores, 1, axis=0))


@_declared("scores enter outputs with the opposite sign", need.GATED_OUTPUT, step="mix")
def _negated_scores(node: Output, vectors: FloatArray, scores: FloatArray) -> FloatArray:
    return mixture(node, vectors, -scores)


#: Faults of programs by name.
PROGRAM_FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _FAULTS}


def __getattr__(name: str) -> Any:
    if name not in PROGRAM_FAULTS:
        raise AttributeError(f"module 'attncheck.faults.programs' has no attribute {name!r}")
    return PROGRAM_FAULTS[name].subject
