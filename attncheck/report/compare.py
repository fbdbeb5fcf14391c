"""Comparison of a run with its baseline."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
from functools import cached_property

from attncheck.records.drift import common, moved, shift
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result
from attncheck.records.text import in_alternatives

#: Maximum number of results listed, and of points drawn.
LISTED, DRAWN = 12, 400


@dataclasses.dataclass(frozen=True)
class PairedResult:
    """A result that both runs examined."""

    before: Result
    after: Result

    @property
    def flipped(self) -> bool:
        """Whether the verdict changed."""
        return self.before.verdict != self.after.verdict

    @property
    def p_value(self) -> float | None:
        """The p-value of the difference between both effects; None if an effect or its interval is missing."""
        return shift(self.before, self.after)

    @property
    def earlier(self) -> str:
        """The effect in the baseline, with the half-width of its interval."""
        if self.before.effect is None:
            return "none"
        return f"{self.before.effect:.4g} ± {0.5 * ((self.before.high or 0.0) - (self.before.low or 0.0)):.2g}"

    @property
    def point(self) -> tuple[float, float] | None:
        """Both effects in units of the alternative; None if one of the results has no effect."""
        before, after = (in_alternatives(self.after, each.effect) for each in (self.before, self.after))
        return None if before is None or after is None else (before, after)


@dataclasses.dataclass(frozen=True, eq=False)
class RunComparison:
    """A run and its baseline.

    ``pairs`` are the results that both runs have, and ``moved`` the ids of those whose effects differ significantly.
    ``only_before`` and ``only_after`` count the results that only one run has.
    """

    baseline: RunRecord
    pairs: tuple[PairedResult, ...]
    moved: frozenset[str]
    only_before: int
    only_after: int

    @property
    def flipped(self) -> int:
        """Number of changed verdicts."""
        return sum(pair.flipped for pair in self.pairs)

    @cached_property
    def changes(self) -> list[PairedResult]:
        """Up to `LISTED` changed verdicts, then moved effects, the most significant first."""
        changed = [pair for pair in self.pairs if pair.flipped or pair.after.id in self.moved]
        return sorted(changed, key=lambda pair: (not pair.flipped, pair.p_value or 0.0, pair.after.id))[:LISTED]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Both effects of up to `DRAWN` results, selected by hash."""
        points = ((_lot(pair.after.id), point) for pair in self.pairs if (point := pair.point) is not None)
        return [point for _, point in heapq.nlargest(DRAWN, points)]


def compare(run: RunRecord, baseline: RunRecord) -> RunComparison:
    """Compare a run with its baseline at the run's false-alarm budget."""
    pairs = tuple(PairedResult(*pair) for pair in common(run, baseline))
    changed = frozenset(change.result.id for change in moved(run, baseline, run.manifest.false_alarm))
    examined = sum(bool(result.p_values) for result in run.every)
    return RunComparison(baseline, pairs, changed, len(baseline.examined_by_id) - len(pairs), examined - len(pairs))


def _lot(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "big")
