"""The conclusion of a record, shared by the page and the gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from attncheck.evidence.budget import Budget
from attncheck.evidence.ledger import Conclusion, Entry, Finding, Ledger
from attncheck.records.schema import Closing, ReportedResult, StatementResult, case_key
from attncheck.records.scope import Scope


def entry_of(line: ReportedResult | StatementResult) -> Entry:
    """Return the ledger entry of a line; results on one case share draws."""
    if isinstance(line, StatementResult):
        return Entry(line.id, line.id, line.verdict, (), looks=False)
    return Entry(line.id, case_key(line), line.verdict, tuple(line.p_values), line.combined, line.continuous, line.key)


def ledger_of(planned: Iterable[str], seed: int, lines: Iterable[ReportedResult | StatementResult]) -> Ledger:
    """Return the ledger of the given results."""
    ledger = Ledger(planned, seed)
    for line in lines:
        ledger.take(entry_of(line))
    return ledger


def concluded(
    ledger: Ledger,
    false_alarm: float,
    closing: Closing | None,
    scope: Scope,
    shard: tuple[int, int] | None = None,
) -> Conclusion:
    """Return a conclusion never better than the run's own, and never a pass for a shard."""
    own = ledger.conclude(Budget(false_alarm), ended=closing is not None)
    own = own.unless(scope.doubt()) if shard is None else own.of_part()
    own = own if closing is None else own.no_better_than(closing.verdict, closing.reasons)
    return own if shard is None else dataclasses.replace(own, findings=(part_of_a_run(shard), *own.findings))


def part_of_a_run(shard: tuple[int, int]) -> Finding:
    """Return why the record of a shard is not a pass, and the remedy."""
    part = f"the record is of shard {shard[0]}/{shard[1]}, a part of a run"
    return Finding("completeness", "incomplete", f"{part}; attncheck merge makes one record of all shards")
