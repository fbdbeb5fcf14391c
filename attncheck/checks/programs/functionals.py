"""Corollary 2, Example 1: checks of the joint law of a program's results and scores at finite width.

The law of each functional of a draw is compared with that of draws by the matrix-free method.
"""

from __future__ import annotations

import functools
from functools import cached_property

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import CheckOf
from attncheck.checks.comparison import between_calls, compared
from attncheck.checks.declared import AlternativeOf, Rejected, of_law
from attncheck.checks.functionals import FunctionalOf, added, log, log_energy
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.checks.reference import RATIO, ReferenceOf
from attncheck.layers.program import Output, Program, ProgramCase
from attncheck.layers.program.extent import results_of
from attncheck.layers.program.requirements import SEVERAL_SCORES, SOME_MATRIX, SOME_SCORE, OfProgram
from attncheck.methods import simulate_chunks

#: Fields needed for exact statements on vectors.
ONE_WIDTH = frozenset({"vectors", "gram"})
#: Number of calls that are compared in a look. With this number, in 200 looks at example programs whose draws of a call
#: shared their matrices, `netsor.calls` always detected it, and `corollary2.calls` in 97% of looks.
CALLS = 8
# Relative rounding error of equal scores, such as ⟨Q x, K x⟩ and ⟨K x, Q x⟩, in single precision.
_ONE_NUMBER = 1e-5
ProgramAlternative = AlternativeOf[ProgramSetting]


def several_widths(setting: ProgramSetting) -> str:
    """Return the reason to exclude a case that does not have three suitable widths, or an empty string."""
    widths = setting.case.widths
    even = len(widths) == 3 and widths[1] ** 2 == widths[0] * widths[2] and widths[0] >= 32
    return "" if even else "an order in n needs three widths of at least 32, in a fixed ratio"


def no_limit(setting: ProgramSetting) -> str:
    """Return the reason to exclude a program for which Definition 1 states no limit, or an empty string."""
    covered = setting.case.program.coverage()
    worst = covered.worst
    return "" if covered.has_limit else f"no limit is stated: {worst.name} {worst.statement}, {worst.reason}"


_FUNCTIONALS: list[FunctionalOf[Program, ProgramSample]] = []
_functional = functools.partial(added, _FUNCTIONALS, needs=frozenset({"outputs", "scores"}))


@_functional("the size of all results", rejects=Rejected.of("always_tanh", "first_term"), unit=1.0)
def _output_size(sample: ProgramSample) -> FloatArray:
    return log_energy(sample.outputs)


@_functional(
    "the size of all scores",
    rejects=Rejected.of("matrix_std_5", "scores_over_n", "limit_scores"),
    requires=SOME_SCORE,
    unit=1.0,
)
def _score_size(sample: ProgramSample) -> FloatArray:
    return log_energy(sample.need("scores"))


@_functional(
    "the product of the first and the last score",
    rejects=Rejected.of("tied_matrices", "scores_over_n"),
    requires=SEVERAL_SCORES,
)
def _two_scores(sample: ProgramSample) -> FloatArray:
    return sample.need("scores")[:, 0] * sample.need("scores")[:, -1]


@_functional(
    "the smallest difference of two scores divided by the largest score",
    rejects=Rejected.of("copied_score"),
    requires=SEVERAL_SCORES,
    unit=1.0,
)
def _closest_scores(sample: ProgramSample) -> FloatArray:
    """Return log(d/m), with d the smallest difference of two scores and m the largest absolute score.

    Ratios below `_ONE_NUMBER` are replaced by it, so that equal scores give a finite value.
    """
    least = np.diff(np.sort(sample.need("scores"), axis=1), axis=1).min(axis=1)
    largest = np.maximum(np.abs(sample.need("scores")).max(axis=1), 1e-300)
    return log(np.maximum(least / largest, _ONE_NUMBER))


@_functional(
    "the product of the first and the last result",
    rejects=Rejected.of("tied_matrices", "first_term"),
    requires=OfProgram("several results", lambda program: len(results_of(program)) > 1, "there is only one result"),
)
def _two_results(sample: ProgramSample) -> FloatArray:
    return sample.outputs[:, 0, 0] * sample.outputs[:, -1, 0]


@_functional("the last result", rejects=Rejected.of("biased_matmuls"))
def _last_result(sample: ProgramSample) -> FloatArray:
    return sample.outputs[:, -1, 0]


@_functional("the product of two neurons of a result", rejects=Rejected.of("equal_rows"), neurons=2)
def _two_neurons(sample: ProgramSample) -> FloatArray:
    return sample.outputs[:, 0, 0] * sample.outputs[:, 0, 1]


@_functional(
    "the product of the logarithms of a result and a score",
    rejects=Rejected.of("tied_matrices"),
    requires=SOME_SCORE,
    unit=1.0,
)
def _output_and_score(sample: ProgramSample) -> FloatArray:
    """Return log y² · log p² for the last result y and the first score p; this is larger if y and p are dependent."""
    return log(sample.outputs[:, -1, 0] ** 2) * log(sample.need("scores")[:, 0] ** 2)


@_functional(
    "the logarithm of a result, with the sign of a score",
    rejects=Rejected.of("negated_scores"),
    requires=SOME_SCORE,
    unit=1.0,
)
def _output_and_sign(sample: ProgramSample) -> FloatArray:
    """Return log y² of the last result, with the sign of the first score that enters it."""
    last = results_of(sample.case.program)[-1]
    entering = last.scores if isinstance(last, Output) else ()
    first = sample.case.scores.index(entering[0]) if entering else 0
    return np.asarray(log(sample.outputs[:, -1, 0] ** 2) * np.sign(sample.need("scores")[:, first]))


#: Functionals of programs.
PROGRAM_FUNCTIONALS = tuple(_FUNCTIONALS)


class ProgramReference(ReferenceOf[ProgramCase]):
    """Reference draws of a program by the matrix-free method, at the smallest width of its case."""

    @cached_property
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every wanted functional, (RATIO · size,)."""
        program, size, coordinates = self.case.program, RATIO * self.size, self.coordinates
        at = program.at(self.case.width)
        drawn = simulate_chunks(at, size, self.size, self.seed, method="matrix-free", coordinates=coordinates)
        samples = (ProgramSample(self.case, (draws,)) for draws in drawn)
        return self.values_of(PROGRAM_FUNCTIONALS, program, coordinates, samples)


ProgramCheck = CheckOf[ProgramSetting, ProgramSample, ProgramReference]


CHECKS = (
    *(
        compared(
            functional,
            name=f"corollary2.{functional.name}",
            claim="corollary2",
            null=f"{functional.text} has the law given by the matrix-free method at the same width",
            alternative=of_law(),
            hint="the simulated program differs from the declared one",
        )
        for functional in PROGRAM_FUNCTIONALS
    ),
    between_calls(
        "results",
        lambda sample: (sample.outputs**2).sum(axis=(1, 2)),
        CALLS,
        name="corollary2.calls",
        claim="corollary2",
        needs=frozenset({"outputs"}),
        requires=SOME_MATRIX,
        rejects=Rejected.of("matrices_of_a_call"),
    ),
)
