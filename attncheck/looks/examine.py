"""The looks at a unit: planned after a probe, taken on streams of their own, and written down as results."""

from __future__ import annotations

import time
from collections.abc import Sequence

from attncheck._lib.streams import seed_sequence, stream
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import examine
from attncheck.looks.look import observe
from attncheck.looks.plan import Cost, Plan, plan
from attncheck.looks.result import examined_result, excused_result
from attncheck.looks.unit import Unit
from attncheck.records.schema import Result
from attncheck.subject import Subject


def run_unit(unit: Unit, subject: Subject, seed: int, cost: Cost) -> list[Result]:
    """Plan a unit, examine it, and return one result per check of its property.

    Every random number comes from streams keyed by (seed, property, layer, look): the same arguments
    give the same digits in any process.
    """
    started = time.perf_counter()
    unsupported = subject.reason_unsupported(unit.case)
    if unsupported:
        return [excused_result(unit, check, cost, unsupported) for check in unit.checks]
    planned = probed(unit, subject, seed, cost)
    names = [check.name for check in planned.sizes]

    def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
        return take_look(unit, planned, subject, seed, look, factor, names)

    trails = examine(evaluate, names, cost.level) if names else {}
    seconds = time.perf_counter() - started
    return [
        examined_result(unit, check, cost, planned, trails[check.name], seconds)
        if check.name in trails
        else excused_result(unit, check, cost, planned.excused[check.name])
        for check in unit.checks
    ]


def probed(unit: Unit, subject: Subject, seed: int, cost: Cost) -> Plan:
    """Return the plan of a unit, after a probe of the subject on a stream of its own."""
    setting = subject.probe(unit.case, stream(seed, *unit.stream_key, role=f"{unit.role}/probe"))
    return plan(unit.checks, setting, cost)


def take_look(
    unit: Unit, planned: Plan, subject: Subject, seed: int, look: int, factor: int, names: Sequence[str]
) -> dict[str, Outcome]:
    """Return what checks, by name, come to on the streams of one look.

    The draws of a check do not depend on which others are asked for.
    """
    checks = [check for check in planned.sizes if check.name in names]
    rng = stream(seed, *unit.stream_key, look=look, role=unit.role)
    reference = seed_sequence(seed, *unit.stream_key, look=look, role=f"{unit.role}/reference")
    return observe(planned, checks, factor, subject, rng, reference)
