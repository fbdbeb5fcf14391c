"""Known-wrong simulators of programs, each with the checks that must detect it.

Every fault is a subject: ``attncheck.check("attncheck.faults.programs:tied_matrices", program)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

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

    def matrices(width: int, rng: np.random.Generator) -> Multiplier:
        right = MatrixFreeMultiplier(width, rng)

        def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
            return change(right(weight, vectors, rows, last))

        return multiply

    return matrices


def _equal_rows(images: FloatArray) -> FloatArray:
    """Replace each block of √n rows by its first row."""
    rows = images.shape[-1]
    block = max(1, round(rows**0.5))
    return images[..., np.arange(rows) // block * block]


def _fresh_matrices(width: int, rng: np.random.Generator) -> Multiplier:
    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        return MatrixFreeMultiplier(width, rng)(weight, vectors, rows, True)

    return multiply


def _tied_matrices(width: int, rng: np.random.Generator) -> Multiplier:
    right = MatrixFreeMultiplier(width, rng)

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        # Uses of equal weights share one matrix.
        return weight.std * right(Weight("", 1.0, weight.rows, weight.columns), vectors, rows, False)

    return multiply


def _wandering_matrices(width: int, rng: np.random.Generator) -> Multiplier:
    """Multiply each matrix by a random factor per draw, with mean square 1."""
    right = MatrixFreeMultiplier(width, rng)
    scales: dict[Weight, FloatArray] = {}

    def multiply(weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        if weight not in scales:
            scales[weight] = np.exp(_SPREAD * rng.standard_normal((len(vectors), 1, 1)) - _SPREAD**2)
        return scales[weight] * right(weight, vectors, rows, last)

    return multiply


def _shifted(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    return jointly_gaussian(group, normals) + _INITIAL_SHIFT


def _apart(group: Sequence[Initial], normals: FloatArray) -> FloatArray:
    """Draw the initial vectors of a group independently, with the same variances."""
    return jointly_gaussian([dataclasses.replace(node, root=_alone(k, node)) for k, node in enumerate(group)], normals)


def _alone(place: int, node: Initial) -> tuple[float, ...]:
    spread = node.covariance[place][place] ** 0.5
    return tuple(spread if k == place else 0.0 for k in range(len(node.root)))


def _always_tanh(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return np.tanh(vectors[0]) if replaceable(node) else coordinatewise(node, vectors)


def _half_precision(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    return coordinatewise(node, vectors).astype(np.float16).astype(np.float64)


def _first_term(node: Nonlin, vectors: Sequence[FloatArray]) -> FloatArray:
    if not isinstance(node.function, LinearCombination):
        return coordinatewise(node, vectors)
    return np.asarray(node.function.coefficients[0] * vectors[0])


def _over_n(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(left.shape[-1] ** -0.5 * dot_product(node, left, right))


def _five_percent(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return 1.05 * dot_product(node, left, right)


def _leaking(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return dot_product(node, left, right) + left[:, 0] + right[:, 0]


def _of_another_draw(node: Score, left: FloatArray, right: FloatArray) -> FloatArray:
    return np.roll(dot_product(node, left, right), 1)


def _mixed_by_another_draw(node: Output, vectors: FloatArray, scores: FloatArray) -> FloatArray:
    return mixture(node, vectors, np.roll(scores, 1, axis=0))


def _limit_scores(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    law = limit_of_program(program)
    scores = dict(zip(law.scores, law.draw(size, 1, rng).scores.T, strict=True))
    return LineByLineSimulator(score=lambda node, left, right: scores[node])(program, width, size, rng)


def _copied_score(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    drawn = dict(LineByLineSimulator()(program, width, size, rng))
    drawn["scores"][:, -1:] = drawn["scores"][:, :1]
    return drawn


def _twice_as_wide(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    return LineByLineSimulator()(program, 2 * width, size, rng)


_FAULTS = (
    ProgramFault(
        "shifted_initials",
        f"{_INITIAL_SHIFT:g} is added to initial vectors",
        RANDOM_START,
        LineByLineSimulator(begin=_shifted),
        ("netsor.initials",),
    ),
    ProgramFault(
        "independent_initials",
        "initial vectors are independent where they should be correlated",
        CORRELATED_START,
        LineByLineSimulator(begin=_apart),
        ("netsor.initials",),
    ),
    ProgramFault(
        "matrix_std_5",
        "the standard deviation of every matrix is 5% too large",
        SOME_MATRIX,
        LineByLineSimulator(matrices=_changed(lambda images: 1.05 * images)),
        (
            "netsor.scale",
            "netsor.lengths",
            "program_scores.scale",
            "corollary2.score_size",
        ),
    ),
    ProgramFault(
        "biased_matmuls",
        f"{_SHIFT:g} is added to the images of every matrix",
        SOME_MATRIX,
        LineByLineSimulator(matrices=_changed(lambda images: images + _SHIFT)),
        (
            "netsor.matmuls",
            "netsor.lengths",
            "program_scores.law",
        ),
    ),
    ProgramFault(
        "fresh_matrices",
        "a matrix is drawn afresh at every use",
        REUSED_MATRIX,
        LineByLineSimulator(matrices=_fresh_matrices),
        (
            "netsor.scale",
            "netsor.lengths",
            "program_scores.scale",
        ),
    ),
    ProgramFault(
        "tied_matrices",
        "all matrices of one shape are one matrix",
        SIDE_BY_SIDE,
        LineByLineSimulator(matrices=_tied_matrices),
        (
            "netsor.sharing",
            "program_scores.law",
            "program_scores.sizes",
            "corollary2.two_scores",
            "corollary2.two_results",
            "corollary2.output_and_score",
        ),
    ),
    ProgramFault("twice_as_wide", "vectors have 2n coordinates", SOME_MATRIX, _twice_as_wide, ("netsor.lengths",)),
    ProgramFault(
        "always_tanh",
        "tanh takes the place of every other nonlinearity",
        NOT_TANH,
        LineByLineSimulator(map=_always_tanh),
        (
            "netsor.functions",
            "corollary2.output_size",
        ),
    ),
    ProgramFault(
        "first_term",
        "sums of vectors consist of the first vector only",
        SOME_SUM,
        LineByLineSimulator(map=_first_term),
        (
            "netsor.functions",
            "corollary2.output_size",
            "corollary2.two_results",
        ),
    ),
    ProgramFault(
        "half_precision",
        "results of nonlinearities are rounded to float16",
        SOME_NONLINEARITY,
        LineByLineSimulator(map=_half_precision),
        ("netsor.functions",),
    ),
    ProgramFault(
        "wandering_scale",
        "each matrix has a standard deviation that changes from draw to draw, and is right on average",
        SOME_MATRIX,
        LineByLineSimulator(matrices=_wandering_matrices),
        (
            "netsor.matmuls",
            "netsor.lengths",
            "theorem1.order",
        ),
    ),
    ProgramFault(
        "equal_rows",
        "matrices have blocks of √n equal rows",
        SOME_MATRIX,
        LineByLineSimulator(matrices=_changed(_equal_rows)),
        (
            "netsor.lengths",
            "fact1.order",
            "corollary2.two_neurons",
        ),
    ),
    ProgramFault(
        "scores_over_n",
        "scores are divided by n where √n is declared",
        SOME_SCORE,
        LineByLineSimulator(score=_over_n),
        (
            "program_scores.law",
            "program_scores.scale",
            "theorem1.scores",
            "corollary2.score_size",
            "corollary2.two_scores",
        ),
    ),
    ProgramFault(
        "scores_5",
        "scores are 5% too large",
        SOME_SCORE,
        LineByLineSimulator(score=_five_percent),
        ("program_scores.scale",),
    ),
    ProgramFault(
        "leaking_neuron",
        "the first coordinates of the two vectors of a score are added to it",
        SOME_SCORE,
        LineByLineSimulator(score=_leaking),
        (
            "program_scores.law",
            "program_scores.independence",
            "program_scores.sizes",
        ),
    ),
    ProgramFault(
        "scores_of_another_draw",
        "scores, and the outputs computed from them, are those of another draw",
        SOME_SCORE,
        LineByLineSimulator(score=_of_another_draw),
        (
            "program_scores.scale",
            "program_scores.sizes",
        ),
    ),
    ProgramFault(
        "limit_scores",
        "scores are drawn from the limit, whatever the vectors are",
        LIMIT_OF_SCORES,
        _limit_scores,
        (
            "program_scores.scale",
            "program_scores.sizes",
            "corollary2.score_size",
        ),
    ),
    ProgramFault(
        "copied_score",
        "the last score is a copy of the first",
        SEVERAL_SCORES,
        _copied_score,
        ("corollary2.closest_scores",),
    ),
    ProgramFault(
        "outputs_apart",
        "outputs use the scores of another draw",
        MIXED_OUTPUT,
        LineByLineSimulator(mix=_mixed_by_another_draw),
        ("netsor.functions",),
    ),
)

#: Faults of programs by name.
PROGRAM_FAULTS: Mapping[str, ProgramFault] = MappingProxyType({fault.name: fault for fault in _FAULTS})


def __getattr__(name: str) -> Any:
    if name not in PROGRAM_FAULTS:
        raise AttributeError(f"module 'attncheck.faults.programs' has no attribute {name!r}")
    return PROGRAM_FAULTS[name].subject
