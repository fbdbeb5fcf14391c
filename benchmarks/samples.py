"""Samples of correct simulators: many small ones of programs, and large ones of layers and programs.

Small samples count false alarms; large ones reveal nulls that hold only approximately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.streams import seed_sequence, stream
from attncheck.calibration.error_rates import DRAWS, LEVELS, Calibration, measured
from attncheck.checks.check import AnyCheck
from attncheck.checks.programs import PROGRAM_CHECKS
from attncheck.checks.programs.functionals import ProgramCheck, ProgramReference
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.checks.reference import RATIO
from attncheck.checks.registry import CHECKS
from attncheck.evidence.family import Outcome
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import EXACT_WIDTHS, Case
from attncheck.layers.program import Program, ProgramCase
from attncheck.layers.program.extent import vectors_of
from attncheck.looks.domains import widths_of
from attncheck.looks.examples import draw_examples
from attncheck.looks.look import observe
from attncheck.looks.plan import Plan, chunk_of
from attncheck.programs import EXAMPLES
from attncheck.simulators.multipliers import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.strategies import program_cases
from attncheck.subject import Subject, collapsed, direct, matrix_free, programs

#: Number of fixed random programs besides all examples.
RANDOM = 4
#: Draws for cases with several widths, about the planned minimum.
RATE_DRAWS = 1_000


def written_programs() -> dict[str, Program]:
    """Return all examples and the random programs, by name."""
    drawn = draw_examples(program_cases(EXACT_WIDTHS, min_scores=1), RANDOM, 0, "calibration")
    return {
        **{name: write() for name, write in EXAMPLES.items()},
        **{f"random {number}": case.program for number, case in enumerate(drawn, 1)},
    }


def checks_at(case: ProgramCase) -> list[ProgramCheck]:
    """Return the program checks at the widths of a case."""
    return [check for check in PROGRAM_CHECKS if widths_of(check.property_name) == case.widths]


def small_samples(
    subject: Subject, setting: ProgramSetting, size: int, count: int
) -> Iterator[tuple[ProgramSample, ProgramReference]]:
    """Yield samples of `size` draws with references, sliced from large ones."""
    case = setting.case
    key = ("calibration", case.key, size)
    rng, root = stream(0, *key), seed_sequence(0, *key, role="reference")
    most = max(1, chunk_of(case, count * size) // size)
    for start in range(0, count, most):
        block = min(most, count - start)
        sample = subject.draw_as(setting, block * size, rng)
        whole = ProgramReference(case, block * size, setting.coordinates, root.spawn(1)[0])
        # Only comparisons at one width use a reference.
        values = whole.functionals if case.widths == EXACT_WIDTHS else {}
        for first in range(0, block * size, size):
            reference = dataclasses.replace(whole, size=size)
            part = slice(RATIO * first, RATIO * (first + size))
            vars(reference)["functionals"] = {name: array[part] for name, array in values.items()}
            yield sample[first : first + size], reference


def calibrate_program(
    case: ProgramCase, checks: Iterable[ProgramCheck], replications: int, subject: Any = programs
) -> dict[str, Calibration]:
    """Return p-values of those checks that apply to a case; those of orders in n must be uniform too."""
    settled, possible = Subject.of(subject), checks_at(case)
    setting = settled.probe(case, stream(0, "calibration", case.key, role="probe"))
    examined = [check for check in checks if check in possible and not check.reason_not_examined(setting)]
    p_values: dict[str, list[float]] = {check.name: [] for check in examined}
    size = DRAWS if case.widths == EXACT_WIDTHS else RATE_DRAWS
    for sample, reference in small_samples(settled, setting, size, replications):
        for check in examined:
            outcome = check.test(setting, measured(check, setting, sample, reference))
            if outcome.count:
                p_values[check.name].append(outcome.p_value)
    return {
        check.name: Calibration(check.name, check.family_on(setting).continuous, np.array(p_values[check.name]))
        for check in examined
    }


def single(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw by the collapsed method and round to single precision."""
    return {name: array.astype(np.float32) for name, array in collapsed(layer, size, rng).items()}


def single_program(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw a program and round to single precision."""
    return {name: array.astype(np.float32) for name, array in programs(program, width, size, rng).items()}


def matrix_free_program(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw a program without matrices, even at small widths."""
    shortest = min(node.length(width) for node in vectors_of(program))
    return draw_exposed(program, width, size, min(2, shortest), rng, MatrixFreeMultiplier).as_dict()


#: Correct simulators of layers.
SUBJECTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "collapsed": collapsed,
    "collapsed, rounded to float32": single,
    "matrix-free": matrix_free,
    "direct": direct,
}
#: Correct simulators of programs.
PROGRAM_SUBJECTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "literal matrices": programs,
    "literal matrices, rounded to float32": single_program,
    "matrix-free": matrix_free_program,
}


def checks_for(case: Case) -> Sequence[AnyCheck]:
    """Return the checks of layers, or of programs at the widths of a case."""
    return checks_at(case) if isinstance(case, ProgramCase) else CHECKS


def large_samples(case: Case, subject: Any, draws: int) -> dict[str, Outcome]:
    """Return the outcome of every check on one large sample."""
    settled, key = Subject.of(subject), ("large sample", case.key, subject.__name__)
    setting: Any = settled.probe(case, stream(0, *key, role="probe"))
    checks = [check for check in checks_for(case) if not check.reason_not_examined(setting)]
    chunk = max(500, 2**20 // case.stored_entries)
    planned = Plan(setting, chunk, LEVELS[-1], 0.5, dict.fromkeys(checks, draws), {})
    rng, reference = stream(0, *key), seed_sequence(0, *key, role="reference")
    outcomes = observe(planned, checks, 1, settled, rng, reference)
    return {name: outcome for name, outcome in outcomes.items() if outcome.count}
