"""Looks at a case: planned after a probe, taken on separate streams, and recorded as results."""

from __future__ import annotations

import time
from collections.abc import Sequence

from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.claims import UNSUPPORTED
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import examine
from attncheck.looks.item import Item
from attncheck.looks.look import observe
from attncheck.looks.plan import Cost, Plan, plan
from attncheck.looks.result import examined_result, skipped_result
from attncheck.records.schema import Result
from attncheck.subject import Subject


def run_items(items: Sequence[Item], subject: Subject, seed: int, cost: Cost) -> list[Result]:
    """Plan test items of one case and role, examine them on the same draws, and return one result per check.

    Results do not depend on the process, nor on which other items are examined. Raises InputError for an unusable
    subject.
    """
    started, one = time.perf_counter(), items[0]
    pairs = [(item, check) for item in items for check in item.checks]
    unsupported = subject.reason_unsupported(one.case)
    if unsupported:
        reason = unsupported if unsupported.startswith(UNSUPPORTED) else f"{UNSUPPORTED}: {unsupported}"
        return [skipped_result(item, check, cost, reason) for item, check in pairs]
    planned = probed(items, subject, seed, cost)
    names = [check.name for check in planned.sizes]

    def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
        return take_look(one, planned, subject, seed, look, factor, names)

    trails = examine(evaluate, names, cost.level) if names else {}
    seconds = (time.perf_counter() - started) / len(items)
    return [
        examined_result(item, check, cost, planned, trails[check.name], seconds)
        if check.name in trails
        else skipped_result(item, check, cost, planned.excused[check.name])
        for item, check in pairs
    ]


def run_item(item: Item, subject: Subject, seed: int, cost: Cost) -> list[Result]:
    """Plan and examine a single test item, and return one result per check."""
    return run_items([item], subject, seed, cost)


def probed(items: Sequence[Item], subject: Subject, seed: int, cost: Cost) -> Plan:
    """Return the plan of the test items of one case, after a trial call of the subject."""
    one = items[0]
    setting = subject.probe(one.case, stream(seed, one.case.key, role=f"{one.role}/probe"))
    return plan([check for item in items for check in item.checks], setting, cost)


def take_look(
    item: Item, planned: Plan, subject: Subject, seed: int, look: int, factor: int, names: Sequence[str]
) -> dict[str, Outcome]:
    """Return the outcomes of the named checks in one look; the draws of a check do not depend on the other checks."""
    checks = [check for check in planned.sizes if check.name in names]
    rng = stream(seed, item.case.key, look=look, role=item.role)
    reference = seed_sequence(seed, item.case.key, look=look, role=f"{item.role}/reference")
    return observe(planned, checks, factor, subject, rng, reference)
