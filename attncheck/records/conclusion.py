"""What the lines of a record come to: one way for the page and the gate."""

from __future__ import annotations

from collections.abc import Iterable

from attncheck.evidence.budget import Budget
from attncheck.evidence.ledger import Conclusion, Entry, Ledger
from attncheck.records.schema import Closing, Reported, Theory
from attncheck.records.scope import Scope


def entry_of(line: Reported | Theory) -> Entry:
    """Return what the ledger needs of a line of a record."""
    if isinstance(line, Theory):
        return Entry(line.id, line.id, line.verdict, (), looks=False)
    return Entry(line.id, line.unit, line.verdict, tuple(line.p_values), line.combined, line.continuous, line.key)


def ledger_of(planned: Iterable[str], seed: int, lines: Iterable[Reported | Theory]) -> Ledger:
    """Return the ledger of results that are at hand."""
    ledger = Ledger(planned, seed)
    for line in lines:
        ledger.take(entry_of(line))
    return ledger


def concluded(ledger: Ledger, false_alarm: float, closing: Closing | None, scope: Scope) -> Conclusion:
    """Return what a record comes to: never better than what the run said at its end."""
    own = ledger.conclude(Budget(false_alarm), ended=closing is not None).unless(scope.doubt())
    return own if closing is None else own.no_better_than(closing.verdict, closing.reasons)
