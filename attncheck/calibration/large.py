"""Large samples of correct simulators, which reveal nulls that hold only approximately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from attncheck._lib.streams import seed_sequence, stream
from attncheck.calibration.found import LEVELS
from attncheck.calibration.programs import checks_at
from attncheck.checks.check import AnyCheck
from attncheck.checks.registry import CHECKS
from attncheck.evidence.family import Outcome
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.layers.program import Program, ProgramCase
from attncheck.layers.program.extent import vectors_of
from attncheck.looks.look import observe
from attncheck.looks.plan import Plan
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.subject import Subject, collapsed, direct, matrix_free, programs


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
SUBJECTS: Mapping[str, Callable[..., dict[str, Any]]] = MappingProxyType(
    {
        "collapsed": collapsed,
        "collapsed, rounded to float32": single,
        "matrix-free": matrix_free,
        "direct": direct,
    }
)
#: Correct simulators of programs.
PROGRAM_SUBJECTS: Mapping[str, Callable[..., dict[str, Any]]] = MappingProxyType(
    {
        "literal matrices": programs,
        "literal matrices, rounded to float32": single_program,
        "matrix-free": matrix_free_program,
    }
)


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
