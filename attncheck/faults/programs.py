"""Known-wrong simulators of programs, and the checks that must detect them.

Every fault is a subject: ``attncheck.check("attncheck.faults.programs:tied_matrices", program)``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.faults import line_by_line as steps
from attncheck.faults.fault import Fault, declared
from attncheck.faults.line_by_line import LineByLineSimulator
from attncheck.layers.program import Initial, LinearCombination, Nonlin, Output, Program, Score, Weight
from attncheck.layers.program import requirements as need
from attncheck.simulators.multipliers import Matrices, MatrixFreeMultiplier, Multiplier
from attncheck.theory.limits.programs import limit_of_program

# Shifts added to vectors whose coordinates have standard deviation about 1.
_SHIFT, _INITIAL_SHIFT = 0.2, 0.5
# Standard deviation over draws of the log scale of a matrix.
_SPREAD = 0.3


def _changed(change: Callable[[FloatArray], FloatArray]) -> Matrices:
    """Return a source of matrices whose images are changed by a function."""

    @functools.wraps(change)
    def matrices(width: int, rng: np.random.Generator) -> Multiplier:
        multiplier = MatrixFreeMultiplier(width, rng)

        def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
            return change(multiplier(weight, vectors, rows, last))

        return multiply

    return matrices


def _alone(index: int, node: Initial) -> tuple[float, ...]:
    spread = node.covariance[index][index] ** 0.5
    return tuple(spread if k == index else 0.0 for k in range(len(node.root)))


_FAULTS: list[Fault] = []
_declared = functools.partial(declared, _FAULTS, simulator=LineByLineSimulator)


@_declared(f"{_INITIAL_SHIFT:g} is added to initial vectors", need.RANDOM_START, step="begin")
def _shifted_initials(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    return steps.jointly_gaussian(group, normals) + _INITIAL_SHIFT


@_declared("initial vectors are independent where they should be correlated", need.CORRELATED_START, step="begin")
def _independent_initials(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    """Draw the initial vectors of a group independently, with the same variances."""
    return steps.jointly_gaussian(
        [dataclasses.replace(node, root=_alone(k, node)) for k, node in enumerate(group)], normals
    )


@_declared("the standard deviation of every matrix is 5% too large", need.SOME_MATRIX, step="matrices")
@_changed
def _matrix_std_5(images: FloatArray) -> FloatArray:
    return 1.05 * images


@_declared(f"{_SHIFT:g} is added to the images of every matrix", need.SOME_MATRIX, step="matrices")
@_changed
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
        # Uses of equal weights share one matrix.
        return weight.std * multiplier(Weight("", 1.0, weight.rows, weight.columns), vectors, rows, False)

    return multiply


@_declared("vectors have 2n coordinates", need.SOME_MATRIX)
def _twice_as_wide(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    return LineByLineSimulator()(program, 2 * width, size, rng)


@_declared("tanh takes the place of every other nonlinearity", need.NOT_TANH, step="map")
def _always_tanh(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return np.tanh(vectors[0]) if need.replaceable(node) else steps.coordinatewise(node, vectors)


@_declared("sums of vectors consist of the first vector only", need.SOME_SUM, step="map")
def _first_term(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    if not isinstance(node.function, LinearCombination):
        return steps.coordinatewise(node, vectors)
    return np.asarray(node.function.coefficients[0] * vectors[0])


@_declared("results of nonlinearities are rounded to float16", need.SOME_NONLINEARITY, step="map")
def _half_precision(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return steps.coordinatewise(node, vectors).astype(np.float16).astype(np.float64)


@_declared(
    "each matrix has a standard deviation that changes from draw to draw, and is right on average",
    need.SOME_MATRIX,
    step="matrices",
)
def _wandering_scale(width: int, rng: np.random.Generator) -> Multiplier:
    """Multiply each matrix by a random factor per draw, with mean square 1."""
    multiplier = MatrixFreeMultiplier(width, rng)
    scales: dict[Weight, FloatArray] = {}

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        if weight not in scales:
            scales[weight] = np.exp(_SPREAD * rng.standard_normal((len(vectors), 1, 1)) - _SPREAD**2)
        return scales[weight] * multiplier(weight, vectors, rows, last)

    return multiply


@_declared("matrices have blocks of √n equal rows", need.SOME_MATRIX, step="matrices")
@_changed
def _equal_rows(images: FloatArray) -> FloatArray:
    """Replace each block of √n rows by its first row."""
    rows = images.shape[-1]
    block = max(1, round(rows**0.5))
    return images[..., np.arange(rows) // block * block]


@_declared("scores are divided by n where √n is declared", need.SOME_SCORE, step="score")
def _scores_over_n(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return np.asarray(first.shape[-1] ** -0.5 * steps.dot_product(node, first, second))


@_declared("scores are 5% too large", need.SOME_SCORE, step="score")
def _scores_5(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return 1.05 * steps.dot_product(node, first, second)


@_declared("the first coordinates of the two vectors of a score are added to it", need.SOME_SCORE, step="score")
def _leaking_neuron(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return steps.dot_product(node, first, second) + first[:, 0] + second[:, 0]


@_declared("scores, and the outputs computed from them, are those of another draw", need.SOME_SCORE, step="score")
def _scores_of_another_draw(node: Score, first: FloatArray, second: FloatArray) -> FloatArray:
    return np.roll(steps.dot_product(node, first, second), 1)


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
    return steps.mixture(node, vectors, np.roll(scores, 1, axis=0))


#: Faults of programs by name.
PROGRAM_FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in _FAULTS})


def __getattr__(name: str) -> Any:
    if name not in PROGRAM_FAULTS:
        raise AttributeError(f"module 'attncheck.faults.programs' has no attribute {name!r}")
    return PROGRAM_FAULTS[name].subject
