"""Ledgers of the lines of a record."""

from __future__ import annotations

from collections.abc import Iterable

from attncheck.evidence.ledger import Entry, Ledger
from attncheck.records.schema import Result, case_key


def entry_of(line: Result) -> Entry:
    """Return the ledger entry of a line; entries on one case share draws."""
    return Entry(line.id, case_key(line), line.verdict, tuple(line.p_values), line.combined, line.continuous)


def ledger_of(planned: Iterable[str], seed: int, lines: Iterable[Result]) -> Ledger:
    """Return the ledger of the given results."""
    ledger = Ledger(planned, seed)
    for line in lines:
        ledger.take(entry_of(line))
    return ledger
