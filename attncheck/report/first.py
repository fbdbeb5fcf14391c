"""What stands on the first screen: what is wrong, how sure that is and what to do; or what would have been seen."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from attncheck.diagnosis.causes import UNKNOWN, Cause, sharpest, sharpest_first, stage
from attncheck.evidence.verdicts import Verdict
from attncheck.looks.pools import ALL
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result, case_key
from attncheck.records.tallies import Tally, tallied
from attncheck.records.words import detectable, reads
from attncheck.report import scales
from attncheck.runs.details import MAIN_CHECKS

# Configurations that a map shows.
_COLUMNS = 40


@dataclasses.dataclass(frozen=True, eq=False)
class SubjectFinding:
    """What is wrong with a subject.

    Attributes
    ----------
    failures : tuple of Tally
        The violated checks, the sharpest first; those of pools where no single configuration is violated.
    sharpest : Result
        The violated result that lies farthest from what is declared, in units of its own error.
    smallest : Result
        The violated result of the same check on the smallest layer.
    causes : tuple of str
        What fits draws of the violated layers, the best first; empty where nothing was fitted, or nothing fits.
    tried : bool
        Whether causes were fitted.
    """

    failures: tuple[Tally, ...]
    sharpest: Result
    smallest: Result
    causes: tuple[str, ...]
    tried: bool

    @property
    def cause(self) -> str:
        """What is most likely wrong, in words."""
        if self.causes:
            return self.causes[0]
        return "no cause that is known fits" if self.tried or not self.sharpest.hint else self.sharpest.hint

    def groups(self, most: int) -> list[Cause]:
        """Return the sharpest violated checks, `most` at most, by what they point at."""
        found: dict[str, list[Tally]] = {}
        for tally in self.failures[:most]:
            found.setdefault(tally.hint, []).append(tally)
        return [Cause(hint, tuple(tallies)) for hint, tallies in found.items()]


def finding(found: RunRecord) -> SubjectFinding | None:
    """Return what is wrong with the subject of a run; None where no check is violated."""
    failures = sharpest_first(found.tallies) or sharpest_first(tallied(each for each in found.pools if each.p_values))
    if not failures:
        return None
    first = failures[0]
    told = found.closing.causes if found.closing else []
    fitted = tuple(told) if told and told[0] != UNKNOWN else ()
    return SubjectFinding(tuple(failures), sharpest(first), first.smallest or first.worst[0], fitted, bool(told))


@dataclasses.dataclass(frozen=True)
class ClaimMap:
    """Claims against configurations.

    Attributes
    ----------
    configurations : tuple of str
        Names of the columns: those on which most claims were examined come first, then the smaller ones.
    rows : tuple of (str, tuple of str)
        A claim, and its worst verdict on each of them.
    left : int
        Configurations that are not shown; none of them is violated where others are not.
    """

    configurations: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    left: int


def claim_map(found: RunRecord) -> ClaimMap | None:
    """Return which claims hold on which configurations; None where nothing was examined."""
    layers = found.space.layers
    if not layers:
        return None
    # Where there are too many, violated ones are kept.
    chosen = sorted(layers, key=lambda key: (key not in found.space.violated, *layers[key], key))[:_COLUMNS]
    claims = Counter(key for verdicts in found.claim_layers.values() for key in verdicts)
    columns = sorted(chosen, key=lambda key: (-claims[key], *layers[key], key))
    rows = tuple(
        (claim, tuple(found.claim_layers[claim].get(key, str(Verdict.NOT_EXAMINED)) for key in columns))
        for claim in sorted(found.claim_layers, key=stage)
    )
    return ClaimMap(tuple(layers[key][1] for key in columns), rows, len(layers) - len(columns))


def _short(tally: Tally) -> str:
    """Return what a check looks at, without how a departure is measured."""
    words = reads(tally.worst[0]).removeprefix("Kolmogorov distance of ")
    return words.removesuffix(", observed over declared").removesuffix(" from the exact law")


def would_have_seen(tallies: Mapping[str, Tally], pools: Sequence[Result]) -> scales.PlotScale | None:
    """Return what would have been seen of each claim, by its first main check that was examined."""
    common = {each.check: each for each in pools if each.p_values and case_key(each) == ALL}
    rows = {}
    for tally in (tallies[name] for name in MAIN_CHECKS if name in tallies):
        if tally.alternatives and tally.claim not in rows:
            together = detectable(common[tally.name]) if tally.name in common else None
            rows[tally.claim] = (f"{tally.claim.replace('_', ' ')}: {_short(tally)}", tally.alternatives, together)
    return scales.would_have_seen(list(rows.values()))
