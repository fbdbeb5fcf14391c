"""Records in memory, and conclusions from their results."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from attncheck._lib.errors import InputError
from attncheck.evidence.ledger import Conclusion, Entry, Ledger
from attncheck.evidence.looks import Budget
from attncheck.evidence.verdicts import Verdict
from attncheck.records.schema import Closing, Line, Manifest, Result, case_key, of_pool, read, run_digest
from attncheck.records.scope import Scope
from attncheck.records.tallies import Space, Tally, tallied


def entry_of(line: Result) -> Entry:
    """Return the ledger entry of a result; entries with the same case share draws."""
    return Entry(line.id, case_key(line), line.verdict, tuple(line.p_values), line.combined, line.continuous)


def ledger_of(planned: Iterable[str], seed: int, lines: Iterable[Result]) -> Ledger:
    """Return the ledger of the given results."""
    ledger = Ledger(planned, seed)
    for line in lines:
        ledger.take(entry_of(line))
    return ledger


def closing_of(conclusion: Conclusion, results: Sequence[Result], seconds: float, **fields: Any) -> Closing:
    """Return the closing line of a run with these results."""
    return Closing(run_digest(results), conclusion.verdict, list(conclusion.reasons), seconds, **fields)


@dataclasses.dataclass(frozen=True, eq=False)
class RunRecord:
    """A run in memory, with results and pools sorted by id.

    ``path`` is None if the run has no file, and ``closing`` if it did not finish. If the run was recorded in several
    records, ``parts`` are these records.
    """

    path: Path | None
    manifest: Manifest
    results: tuple[Result, ...]
    pools: tuple[Result, ...]
    closing: Closing | None
    parts: tuple[RunRecord, ...] = ()

    def part_of(self, id: str) -> RunRecord:
        """Return the part that contains a result, or the run itself if no part does."""
        return next((part for part in self.parts if id in part.by_id), self)

    @property
    def every(self) -> tuple[Result, ...]:
        """All results: on single cases, then of pools."""
        return (*self.results, *self.pools)

    @property
    def digest(self) -> str:
        """The digest of all numbers; empty if the run is incomplete or the subject's draws are not reproducible."""
        repeatable = all(result.repeatable for result in self.results)
        return self.closing.digest if self.closing and self.conclusion.complete and repeatable else ""

    @cached_property
    def by_id(self) -> dict[str, Result]:
        """Results and pools by id."""
        return {result.id: result for result in reversed(self.every)}

    @cached_property
    def examined_by_id(self) -> dict[str, Result]:
        """Examined results and pools by id."""
        return {id: result for id, result in self.by_id.items() if result.verdict != Verdict.NOT_EXAMINED}

    @cached_property
    def planned(self) -> dict[str, str]:
        """The test item of each planned result on a single case, by id of the result."""
        return {result.id: result.item for result in self.manifest.planned}

    @cached_property
    def conclusion(self) -> Conclusion:
        """The conclusion from the results: never better than the recorded verdict."""
        planned = [*self.planned, *(pool.id for pool in self.pools)]
        ledger = ledger_of(planned, self.manifest.seed, self.every)
        outcome = ledger.conclude(Budget(self.manifest.false_alarm), ended=self.closing is not None)
        outcome = outcome.unless(self.scope.doubt(self.manifest.min_examined))
        if self.closing is not None:
            outcome = outcome.no_better_than(self.closing.verdict, self.closing.reasons)
        return outcome

    @cached_property
    def scope(self) -> Scope:
        """Scope of the results on single cases."""
        return Scope.of_results(self.results)

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """Results on single cases, grouped by check and sorted by the check's name."""
        return dict(sorted(tallied(self.results).items()))

    @cached_property
    def space(self) -> Space:
        """The cases that were examined."""
        return Space.of(self.results)

    @cached_property
    def claim_layers(self) -> dict[str, dict[str, str]]:
        """Worst verdict on each claim in each case: a mapping from claims to mappings from case keys to verdicts."""
        by_claim: dict[str, dict[str, str]] = {}
        for result in self.results:
            if result.p_values:
                verdicts = by_claim.setdefault(result.claim, {})
                verdicts[case_key(result)] = str(
                    Verdict.worst((result.verdict, verdicts.get(case_key(result), result.verdict)))
                )
        return by_claim

    @property
    def examined(self) -> int:
        """Number of examined results on single cases."""
        return sum(tally.examined for tally in self.tallies.values())

    def count(self, verdict: str) -> int:
        """Return the number of results, pools included, with a verdict."""
        return Counter(result.verdict for result in self.every)[verdict]


def read_records(path: Path, field: str = "record") -> list[RunRecord]:
    """Read the records in a file.

    `field` is the name of the file in error messages. Raises `InputError` if the file is invalid, or if its numbers do
    not match their digest.
    """
    parts: list[list[Line]] = []
    for number, line in enumerate(read(path, field=field), 1):
        if isinstance(line, Manifest):
            parts.append([])
        elif isinstance(line, Result):
            try:
                entry_of(line)
                of_pool(line)
            except InputError as error:
                problem = str(error).rpartition("; ")[0]  # without its remedy, which is one for callers in Python
                problem = f"line {number} was edited or damaged ({problem}); make the {field} again"
                raise InputError(f"{field}={path}: {problem}") from None
        parts[-1].append(line)
    records = [record_of(path, lines) for lines in parts]
    for record in records:
        if record.closing is not None and record.closing.digest != run_digest(record.every):
            raise InputError(f"{field}={path}: its digest does not match its results; make the {field} again")
    return records


def record_of(path: Path | None, lines: Sequence[Line]) -> RunRecord:
    """Return the record that consists of `lines`, of which the first is the manifest."""
    manifest, last = lines[0], lines[-1]
    assert isinstance(manifest, Manifest)
    results = sorted((line for line in lines if isinstance(line, Result)), key=lambda one: one.id)
    single, pools = ([result for result in results if of_pool(result) == pooled] for pooled in (False, True))
    return RunRecord(path, manifest, tuple(single), tuple(pools), last if isinstance(last, Closing) else None)
