"""Records in memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cached_property
from pathlib import Path

from attncheck._lib.errors import InputError
from attncheck.evidence.ledger import Conclusion, Entry, Ledger
from attncheck.evidence.verdicts import Verdict
from attncheck.records.conclusion import concluded, entry_of
from attncheck.records.schema import (
    Closing,
    Manifest,
    Result,
    StatementResult,
    case_key,
    of_pool,
    read,
    run_digest,
    sensible,
)
from attncheck.records.scope import Scope
from attncheck.records.tallies import Space, Tally, tallied


@dataclasses.dataclass(frozen=True, eq=False)
class RunRecord:
    """A record in memory, results and pools sorted by id.

    ``closing`` is None if the run did not finish; ``entries`` are the ledger entries of all lines.
    """

    path: Path
    manifest: Manifest
    results: tuple[Result, ...]
    pools: tuple[Result, ...]
    theory: tuple[StatementResult, ...]
    closing: Closing | None
    entries: tuple[tuple[Entry, bool], ...]

    @property
    def shard_name(self) -> str:
        """The shard, such as "2/8"; empty for a whole run."""
        return "" if self.manifest.shard is None else "{}/{}".format(*self.manifest.shard)

    @property
    def every(self) -> tuple[Result, ...]:
        """Results on single cases, then those of pools."""
        return (*self.results, *self.pools)

    @property
    def digest(self) -> str:
        """The digest of all digits; empty if the run did not finish, or its draws are not reproducible."""
        repeatable = all(result.repeatable for result in self.results)
        return self.closing.digest if self.closing is not None and repeatable else ""

    @cached_property
    def by_id(self) -> dict[str, Result]:
        """Results and pools by id."""
        return {result.id: result for result in reversed(self.every)}

    @cached_property
    def planned(self) -> dict[str, str]:
        """The test item of each planned result on a single case, by id of the result."""
        return {each.id: each.item for each in self.manifest.planned}

    @cached_property
    def conclusion(self) -> Conclusion:
        """The conclusion, never better than the run's own."""
        shard = self.manifest.shard
        ledger = Ledger([*self.planned, *self.manifest.statements] if shard is None else (), self.manifest.seed)
        for entry, planned in self.entries:
            ledger.take(entry, planned=planned)
        return concluded(ledger, self.manifest.false_alarm, self.closing, self.scope, shard)

    @cached_property
    def scope(self) -> Scope:
        """What the results on single cases cover."""
        return Scope.of_results(self.results)

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """Results on single cases by check, sorted by name."""
        return dict(sorted(tallied(self.results).items()))

    @cached_property
    def space(self) -> Space:
        """The cases that were examined."""
        return Space.of(self.results)

    @cached_property
    def claim_layers(self) -> dict[str, dict[str, str]]:
        """The worst verdict on each claim and case, by claim and then by key of the case."""
        found: dict[str, dict[str, str]] = {}
        for each in self.results:
            if each.p_values:
                verdicts = found.setdefault(each.claim, {})
                verdicts[case_key(each)] = str(
                    Verdict.worst((each.verdict, verdicts.get(case_key(each), each.verdict)))
                )
        return found

    @property
    def reported(self) -> int:
        """Number of results on single cases."""
        return len(self.results)

    @property
    def examined(self) -> int:
        """Number of examined results on single cases."""
        return sum(tally.examined for tally in self.tallies.values())

    def count(self, verdict: str) -> int:
        """Return the number of results, pools included, with a verdict."""
        return Counter(result.verdict for result in self.every)[verdict]

    def check_digest(self) -> None:
        """Raise `InputError` unless the digest is that of the results."""
        if self.closing is not None and self.closing.digest != run_digest([*self.every, *self.theory]):
            raise InputError(f"record={self.path}: its digest is not that of its results; make the record again")


def read_record(path: Path) -> RunRecord:
    """Read a record; raise `InputError` if it cannot be read, was edited, or has an invalid line."""
    lines = read(path)
    manifest = next(lines)
    assert isinstance(manifest, Manifest)
    results: list[Result] = []
    pools: list[Result] = []
    theory: list[StatementResult] = []
    entries, closing = [], None
    for number, line in enumerate(lines, 2):
        if isinstance(line, Closing):
            closing = line
            continue
        assert isinstance(line, Result | StatementResult)
        with sensible(path, number):
            pooled = isinstance(line, Result) and of_pool(line)
            # Pools, and the results of a shard, count as planned: the manifest lacks the one, and plans more than
            # the other.
            entries.append((entry_of(line), pooled or manifest.shard is not None))
        if isinstance(line, StatementResult):
            theory.append(line)
        else:
            (pools if pooled else results).append(line)
    for each in (results, pools, theory):
        each.sort(key=lambda one: one.id)
    return RunRecord(path, manifest, tuple(results), tuple(pools), tuple(theory), closing, tuple(entries))
