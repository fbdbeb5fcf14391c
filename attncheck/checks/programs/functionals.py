"""Functionals of one draw of a program, on which two methods are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.layers.program import Program
from attncheck.layers.program.extent import results_of
from attncheck.layers.program.requirements import SEVERAL_SCORES, SOME_SCORE, OfProgram
from attncheck.layers.requirement import ANY

FloatArray = NDArray[np.float64]

# Relative rounding error of equal scores, such as ⟨Q x, K x⟩ and ⟨K x, Q x⟩, in single precision.
_ONE_NUMBER = 1e-5


@dataclasses.dataclass(frozen=True)
class ProgramFunctional:
    """A number per draw, computed from results and scores, and the programs that it applies to.

    `compute` takes outputs (draws, results, neurons) and scores (draws, scores). `unit` and `neurons` are as in
    `attncheck.checks.functionals.Functional`.
    """

    name: str
    text: str
    compute: Callable[[FloatArray, FloatArray], FloatArray]
    requires: OfProgram = ANY
    unit: float = 0.0
    neurons: int = 1

    def applies(self, program: Program, neurons: int) -> bool:
        """Return whether the functional applies to a program of which `neurons` neurons are returned."""
        return self.neurons <= neurons and not self.requires.reason(program)


def _log(values: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(values, 1e-300)))


def _output_size(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return _log((outputs**2).sum(axis=(1, 2)))


def _score_size(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return _log((scores**2).sum(axis=1))


def _two_scores(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(scores[:, 0] * scores[:, -1])


def _closest_scores(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    """Return log(d/m), d the smallest difference of two scores and m the largest absolute score.

    Ratios below `_ONE_NUMBER` are replaced by it, so that equal scores give a finite value.
    """
    least = np.diff(np.sort(scores, axis=1), axis=1).min(axis=1)
    largest = np.maximum(np.abs(scores).max(axis=1), 1e-300)
    return _log(np.maximum(least / largest, _ONE_NUMBER))


def _two_results(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(outputs[:, 0, 0] * outputs[:, -1, 0])


def _two_neurons(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(outputs[:, 0, 0] * outputs[:, 0, 1])


def _output_and_score(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    """Return a product that is larger if output and score are dependent."""
    return np.asarray(_log(outputs[:, -1, 0] ** 2) * _log(scores[:, 0] ** 2))


#: Functionals of programs.
PROGRAM_FUNCTIONALS = (
    ProgramFunctional("output_size", "the size of all results", _output_size, unit=1.0),
    ProgramFunctional("score_size", "the size of all scores", _score_size, SOME_SCORE, unit=1.0),
    ProgramFunctional(
        "two_scores",
        "the product of the first and the last score",
        _two_scores,
        SEVERAL_SCORES,
    ),
    ProgramFunctional(
        "closest_scores",
        "the smallest difference of two scores over the largest score",
        _closest_scores,
        SEVERAL_SCORES,
        unit=1.0,
    ),
    ProgramFunctional(
        "two_results",
        "the product of the first and the last result",
        _two_results,
        OfProgram("several results", lambda program: len(results_of(program)) > 1, "there is only one result"),
    ),
    ProgramFunctional(
        "two_neurons",
        "the product of two neurons of a result",
        _two_neurons,
        neurons=2,
    ),
    ProgramFunctional(
        "output_and_score",
        "the product of the logarithms of a result and a score",
        _output_and_score,
        SOME_SCORE,
        unit=1.0,
    ),
)
