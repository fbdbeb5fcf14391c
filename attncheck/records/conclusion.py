"""Ledgers of the lines of a record, and its closing line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attncheck.evidence.ledger import Conclusion, Entry, Ledger
from attncheck.records.schema import Closing, Result, case_key, run_digest


def entry_of(line: Result) -> Entry:
    """Return the ledger entry of a line; entries on one case share draws."""
    return Entry(line.id, case_key(line), line.verdict, tuple(line.p_values), line.combined, line.continuous)


def ledger_of(planned: Iterable[str], seed: int, lines: Iterable[Result]) -> Ledger:
    """Return the ledger of the given results."""
    ledger = Ledger(planned, seed)
    for line in lines:
        ledger.take(entry_of(line))
    return ledger


def closing_of(conclusion: Conclusion, results: Sequence[Result], seconds: float, **fields: Any) -> Closing:
    """Return the closing line of a run with these results."""
    return Closing(run_digest(results), conclusion.verdict, list(conclusion.reasons), len(results), seconds, **fields)
