"""Numbers of one draw of a program, on which two readings are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.layers.case import ProgramCase
from attncheck.layers.program.extent import results_of

FloatArray = NDArray[np.float64]

# Distances below this share of the largest score are no distances: two scores may be one number by what they are made
# of, as ⟨Q x, K x⟩ and ⟨K x, Q x⟩, and differ by rounding, in single precision too.
_ONE_NUMBER = 1e-5


@dataclasses.dataclass(frozen=True)
class ProgramFunctional:
    """A number per draw of outputs (N, m, k) and scores (N, r), and why there is none in some cases.

    `unit` is as for `attncheck.checks.functionals.Functional`.
    """

    name: str
    text: str
    compute: Callable[[FloatArray, FloatArray], FloatArray]
    excluded: Callable[[ProgramCase, int], str] = lambda case, coordinates: ""
    unit: float = 0.0


def _log(values: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(values, 1e-300)))


def _output_size(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return _log((outputs**2).sum(axis=(1, 2)))


def _score_size(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return _log((scores**2).sum(axis=1))


def _two_scores(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(scores[:, 0] * scores[:, -1])


def _closest_scores(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    """Return the logarithm of the least distance of two scores over the largest one, the least where one is a copy."""
    least = np.diff(np.sort(scores, axis=1), axis=1).min(axis=1)
    largest = np.maximum(np.abs(scores).max(axis=1), 1e-300)
    return _log(np.maximum(least / largest, _ONE_NUMBER))


def _two_results(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(outputs[:, 0, 0] * outputs[:, -1, 0])


def _two_neurons(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    return np.asarray(outputs[:, 0, 0] * outputs[:, 0, 1])


def _output_and_score(outputs: FloatArray, scores: FloatArray) -> FloatArray:
    """Return a product that is large where both are: what independence of the two would make smaller."""
    return np.asarray(_log(outputs[:, -1, 0] ** 2) * _log(scores[:, 0] ** 2))


def _needs_scores(case: ProgramCase, coordinates: int) -> str:
    return "" if case.scores else "the program has no scores"


#: In the order in which they are examined.
PROGRAM_FUNCTIONALS = (
    ProgramFunctional("output_size", "the size of all results", _output_size, unit=1.0),
    ProgramFunctional("score_size", "the size of all scores", _score_size, _needs_scores, unit=1.0),
    ProgramFunctional(
        "two_scores",
        "the product of the first and the last score",
        _two_scores,
        lambda case, coordinates: "" if len(case.scores) > 1 else "there is one score at most",
    ),
    ProgramFunctional(
        "closest_scores",
        "the least distance of two scores over the largest",
        _closest_scores,
        lambda case, coordinates: "" if len(case.scores) > 1 else "there is one score at most",
        unit=1.0,
    ),
    ProgramFunctional(
        "two_results",
        "the product of the first and the last result",
        _two_results,
        lambda case, coordinates: "" if len(results_of(case.program)) > 1 else "there is one result",
    ),
    ProgramFunctional(
        "two_neurons",
        "the product of two neurons of a result",
        _two_neurons,
        lambda case, coordinates: "" if coordinates > 1 else "one neuron is exposed",
    ),
    ProgramFunctional(
        "output_and_score",
        "the product of the logarithms of a result and a score",
        _output_and_score,
        _needs_scores,
        unit=1.0,
    ),
)
