"""Known-wrong simulators of programs, each with the checks that must detect it.

Every fault is a subject: ``attncheck.check("attncheck.faults.programs:tied_matrices", program)``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attncheck.faults.line_by_line import (
    LineByLineSimulator,
    Matrices,
    coordinatewise,
    dot_product,
    jointly_gaussian,
    mixture,
)
from attncheck.layers.program import Initial, LinearCombination, Nonlin, Output, Program, Score, Weight
from attncheck.layers.program.requirements import (
    CORRELATED_START,
    LIMIT_OF_SCORES,
    MIXED_OUTPUT,
    NOT_TANH,
    RANDOM_START,
    REUSED_MATRIX,
    SEVERAL_SCORES,
    SIDE_BY_SIDE,
    SOME_MATRIX,
    SOME_NONLINEARITY,
    SOME_SCORE,
    SOME_SUM,
    OfProgram,
    replaceable,
)
from attncheck.simulators.interpret import Multiplier
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.theory.limits.programs import limit_of_program

FloatArray = NDArray[np.float64]
ProgramSimulator = Callable[[Program, int, int, np.random.Generator], Mapping[str, FloatArray]]

# Shifts added to vectors whose coordinates have standard deviation about 1.
_SHIFT, _INITIAL_SHIFT = 0.2, 0.5
# Standard deviation over draws of the log scale of a matrix.
_SPREAD = 0.3


@dataclasses.dataclass(frozen=True)
class ProgramFault:
    """A simulator of programs with exactly one error.

    Attributes
    ----------
    name : str
        Key in `PROGRAM_FAULTS`, and of the subject ``attncheck.faults.programs:name``.
    what : str
        One-line description.
    requires : Requirement
        Programs in which the fault is detectable.
    subject : callable (program, width, size, rng) -> mapping
        The simulator. As in a real one, exposed Gram matrices are those of the vectors it used.
    seen_by : tuple of str
        Checks that must detect the fault wherever they apply.
    """

    name: str
    what: str
    requires: OfProgram
    subject: ProgramSimulator
    seen_by: tuple[str, ...]

    def reason_hidden(self, program: Program) -> str:
        """Return why the fault cannot be detected in `program`, or an empty string."""
        return self.requires.reason(program)


def _changed(change: Callable[[FloatArray], FloatArray]) -> Matrices:
    """Draw matrices and change their images."""

    @functools.wraps(change)
    def matrices(width: int, rng: np.random.Generator) -> Multiplier:
        right = MatrixFreeMultiplier(width, rng)

        def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
            return change(right(weight, vectors, rows, last))

        return multiply

    return matrices


def _alone(place: int, node: Initial) -> tuple[float, ...]:
    spread = node.covariance[place][place] ** 0.5
    return tuple(spread if k == place else 0.0 for k in range(len(node.root)))


_FAULTS: list[ProgramFault] = []
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _declared(what: str, requires: OfProgram, *seen_by: str, step: str = "") -> Callable[[_Function], _Function]:
    """Return a decorator that adds a fault, named like its function: a simulator or a step of `LineByLineSimulator`."""

    def add(function: _Function) -> _Function:
        wrong: dict[str, Any] = {step: function}
        subject = LineByLineSimulator(**wrong) if step else function
        _FAULTS.append(ProgramFault(function.__name__.lstrip("_"), what, requires, subject, seen_by))
        return function

    return add


@_declared(f"{_INITIAL_SHIFT:g} is added to initial vectors", RANDOM_START, "netsor.initials", step="begin")
def _shifted_initials(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    return jointly_gaussian(group, normals) + _INITIAL_SHIFT


@_declared(
    "initial vectors are independent where they should be correlated", CORRELATED_START, "netsor.initials", step="begin"
)
def _independent_initials(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    """Draw the initial vectors of a group independently, with the same variances."""
    return jointly_gaussian([dataclasses.replace(node, root=_alone(k, node)) for k, node in enumerate(group)], normals)


@_declared(
    "the standard deviation of every matrix is 5% too large",
    SOME_MATRIX,
    "netsor.scale",
    "netsor.lengths",
    "program_scores.scale",
    "corollary2.score_size",
    step="matrices",
)
@_changed
def _matrix_std_5(images: FloatArray) -> FloatArray:
    return 1.05 * images


@_declared(
    f"{_SHIFT:g} is added to the images of every matrix",
    SOME_MATRIX,
    "netsor.matmuls",
    "netsor.lengths",
    "program_scores.law",
    step="matrices",
)
@_changed
def _biased_matmuls(images: FloatArray) -> FloatArray:
    return images + _SHIFT


@_declared(
    "a matrix is drawn afresh at every use",
    REUSED_MATRIX,
    "netsor.scale",
    "netsor.lengths",
    "program_scores.scale",
    step="matrices",
)
def _fresh_matrices(width: int, rng: np.random.Generator) -> Multiplier:
    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        return MatrixFreeMultiplier(width, rng)(weight, vectors, rows, True)

    return multiply


@_declared(
    "all matrices of one shape are one matrix",
    SIDE_BY_SIDE,
    "netsor.sharing",
    "program_scores.law",
    "program_scores.sizes",
    "corollary2.two_scores",
    "corollary2.two_results",
    "corollary2.output_and_score",
    step="matrices",
)
def _tied_matrices(width: int, rng: np.random.Generator) -> Multiplier:
    right = MatrixFreeMultiplier(width, rng)

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        # Uses of equal weights share one matrix.
        return weight.std * right(Weight("", 1.0, weight.rows, weight.columns), vectors, rows, False)

    return multiply


@_declared("vectors have 2n coordinates", SOME_MATRIX, "netsor.lengths")
def _twice_as_wide(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    return LineByLineSimulator()(program, 2 * width, size, rng)


@_declared(
    "tanh takes the place of every other nonlinearity",
    NOT_TANH,
    "netsor.functions",
    "corollary2.output_size",
    step="map",
)
def _always_tanh(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return np.tanh(vectors[0]) if replaceable(node) else coordinatewise(node, vectors)


@_declared(
    "sums of vectors consist of the first vector only",
    SOME_SUM,
    "netsor.functions",
    "corollary2.output_size",
    "corollary2.two_results",
    step="map",
)
def _first_term(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    if not isinstance(node.function, LinearCombination):
        return coordinatewise(node, vectors)
    return np.asarray(node.function.coefficients[0] * vectors[0])


@_declared("results of nonlinearities are rounded to float16", SOME_NONLINEARITY, "netsor.functions", step="map")
def _half_precision(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return coordinatewise(node, vectors).astype(np.float16).astype(np.float64)


@_declared(
    "each matrix has a standard deviation that changes from draw to draw, and is right on average",
    SOME_MATRIX,
    "netsor.matmuls",
    "netsor.lengths",
    "theorem1.order",
    step="matrices",
)
def _wandering_scale(width: int, rng: np.random.Generator) -> Multiplier:
    """Multiply each matrix by a random factor per draw, with mean square 1."""
    right = MatrixFreeMultiplier(width, rng)
    scales: dict[Weight, FloatArray] = {}

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        if weight not in scales:
            scales[weight] = np.exp(_SPREAD * rng.standard_normal((len(vectors), 1, 1)) - _SPREAD**2)
        return scales[weight] * right(weight, vectors, rows, last)

    return multiply


@_declared(
    "matrices have blocks of √n equal rows",
    SOME_MATRIX,
    "netsor.lengths",
    "fact1.order",
    "corollary2.two_neurons",
    step="matrices",
)
@_changed
def _equal_rows(images: FloatArray) -> FloatArray:
    """Replace each block of √n rows by its first row."""
    rows = images.shape[-1]
    block = max(1, round(rows**0.5))
    return images[..., np.arange(rows) // block * block]


@_declared(
    "scores are divided by n where √n is declared",
    SOME_SCORE,
    "program_scores.law",
    "program_scores.scale",
    "theorem1.scores",
    "corollary2.score_size",
    "corollary2.two_scores",
    step="score",
)
def _scores_over_n(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(left.shape[-1] ** -0.5 * dot_product(node, left, right))


@_declared("scores are 5% too large", SOME_SCORE, "program_scores.scale", step="score")
def _scores_5(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return 1.05 * dot_product(node, left, right)


@_declared(
    "the first coordinates of the two vectors of a score are added to it",
    SOME_SCORE,
    "program_scores.law",
    "program_scores.independence",
    "program_scores.sizes",
    step="score",
)
def _leaking_neuron(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return dot_product(node, left, right) + left[:, 0] + right[:, 0]


@_declared(
    "scores, and the outputs computed from them, are those of another draw",
    SOME_SCORE,
    "program_scores.scale",
    "program_scores.sizes",
    step="score",
)
def _scores_of_another_draw(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return np.roll(dot_product(node, left, right), 1)


@_declared(
    "scores are drawn from the limit, whatever the vectors are",
    LIMIT_OF_SCORES,
    "program_scores.scale",
    "program_scores.sizes",
    "corollary2.score_size",
)
def _limit_scores(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    law = limit_of_program(program)
    scores = dict(zip(law.scores, law.draw(size, 1, rng).scores.T, strict=True))
    return LineByLineSimulator(score=lambda node, left, right: scores[node])(program, width, size, rng)


@_declared("the last score is a copy of the first", SEVERAL_SCORES, "corollary2.closest_scores")
def _copied_score(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    drawn = dict(LineByLineSimulator()(program, width, size, rng))
    drawn["scores"][:, -1:] = drawn["scores"][:, :1]
    return drawn


@_declared("outputs use the scores of another draw", MIXED_OUTPUT, "netsor.functions", step="mix")
def _outputs_apart(node: Output, vectors: FloatArray, scores: FloatArray) -> FloatArray:
    return mixture(node, vectors, np.roll(scores, 1, axis=0))


#: Faults of programs by name.
PROGRAM_FAULTS: Mapping[str, ProgramFault] = MappingProxyType({fault.name: fault for fault in _FAULTS})


def __getattr__(name: str) -> Any:
    if name not in PROGRAM_FAULTS:
        raise AttributeError(f"module 'attncheck.faults.programs' has no attribute {name!r}")
    return PROGRAM_FAULTS[name].subject
