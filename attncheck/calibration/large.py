"""One large sample of a right simulator, by every check: a null that holds only nearly would show there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from attncheck._lib.streams import seed_sequence, stream
from attncheck.calibration.programs import checks_at
from attncheck.checks.check import AnyCheck
from attncheck.checks.programs.reference import ProgramReference
from attncheck.checks.programs.sample import ProgramSetting
from attncheck.checks.reference import Reference
from attncheck.checks.registry import CHECKS
from attncheck.evidence.family import Outcome
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case, ProgramCase
from attncheck.layers.program import Program
from attncheck.layers.program.extent import vectors_of
from attncheck.looks.held import join
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.subject import Subject, collapsed, direct, matrix_free, programs


def single(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw the collapsed reading and round it to single precision."""
    return {name: array.astype(np.float32) for name, array in collapsed(layer, size, rng).items()}


def single_program(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw a program and round it to single precision."""
    return {name: array.astype(np.float32) for name, array in programs(program, width, size, rng).items()}


def matrix_free_program(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw a program without matrices, at small widths too."""
    shortest = min(node.length(width) for node in vectors_of(program))
    return draw_exposed(program, width, size, min(2, shortest), rng, MatrixFreeMultiplier).as_dict()


#: Right simulators of layers.
SUBJECTS: Mapping[str, Callable[..., dict[str, Any]]] = MappingProxyType(
    {
        "collapsed": collapsed,
        "collapsed, rounded to float32": single,
        "matrix-free": matrix_free,
        "direct": direct,
    }
)
#: Right simulators of programs.
PROGRAM_SUBJECTS: Mapping[str, Callable[..., dict[str, Any]]] = MappingProxyType(
    {
        "literal matrices": programs,
        "literal matrices, rounded to float32": single_program,
        "matrix-free": matrix_free_program,
    }
)


def checks_for(case: Case) -> Sequence[AnyCheck]:
    """Return the checks of layers, or those of programs at the widths of a case."""
    return checks_at(case) if isinstance(case, ProgramCase) else CHECKS


def reference_for(setting: Any, size: int, seed: np.random.SeedSequence) -> Reference | ProgramReference:
    """Return what draws of a layer, or of a program, are compared with."""
    if isinstance(setting, ProgramSetting):
        return ProgramReference(setting.case, size, setting.coordinates, seed)
    return Reference(setting.layer, size, setting.coordinates, seed)


def large_samples(case: Case, subject: Any, draws: int) -> dict[str, Outcome]:
    """Return what every check says of one large sample of a subject."""
    settled, key = Subject.of(subject), ("large sample", case.key, subject.__name__)
    setting: Any = settled.probe(case, stream(0, *key, role="probe"))
    checks = [check for check in checks_for(case) if not check.reason_not_examined(setting)]
    step = max(500, 2**20 // case.stored_entries)
    rng, root = stream(0, *key), seed_sequence(0, *key, role="reference")
    parts: dict[AnyCheck, list[tuple[Any, ...]]] = {check: [] for check in checks}
    for start in range(0, draws, step):
        sample: Any = settled.draw_as(setting, min(step, draws - start), rng)
        reference = reference_for(setting, len(sample), root.spawn(1)[0])
        for check in checks:
            parts[check].append(check.measure(sample, reference))
    outcomes = {check.name: check.test(setting, join(parts[check])) for check in checks}
    return {name: outcome for name, outcome in outcomes.items() if outcome.count}
