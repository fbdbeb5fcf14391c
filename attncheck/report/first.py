"""Content of the first screen: claims by case, and detectable effects."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from attncheck.diagnosis.causes import stage
from attncheck.evidence.verdicts import Verdict
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result
from attncheck.records.tallies import Tally
from attncheck.records.text import detectable, quantity
from attncheck.report import intervals
from attncheck.report.svg import Drawing
from attncheck.runs.details import MAIN_CHECKS, of_all

# Maximum number of cases, which are columns, in the map of claims.
_COLUMNS = 40


@dataclasses.dataclass(frozen=True)
class ClaimMap:
    """Worst verdict on each claim (``rows``) and case; ``left`` is the number of cases not shown."""

    cases: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    left: int


def claim_map(found: RunRecord) -> ClaimMap | None:
    """Return the worst verdict on each claim by case, or None if no case was examined."""
    layers = found.space.layers
    if not layers:
        return None
    # Violated cases take precedence.
    chosen = sorted(layers, key=lambda key: (key not in found.space.violated, *layers[key], key))[:_COLUMNS]
    claims = Counter(key for verdicts in found.claim_layers.values() for key in verdicts)
    columns = sorted(chosen, key=lambda key: (-claims[key], *layers[key], key))
    rows = tuple(
        (claim, tuple(found.claim_layers[claim].get(key, str(Verdict.NOT_EXAMINED)) for key in columns))
        for claim in sorted(found.claim_layers, key=stage)
    )
    return ClaimMap(tuple(layers[key][1] for key in columns), rows, len(layers) - len(columns))


def would_have_seen(tallies: Mapping[str, Tally], pools: Sequence[Result]) -> Drawing | None:
    """Plot the minimum detectable effects of each claim, of the first main check that was examined for it."""
    common = of_all(pools)
    rows = {}
    for tally in (tallies[name] for name in MAIN_CHECKS if name in tallies):
        if tally.alternatives and tally.claim not in rows:
            together = detectable(common[tally.name]) if tally.name in common else None
            name = f"{tally.claim.replace('_', ' ')}: {quantity(tally.worst[0])}"
            rows[tally.claim] = name, tally.alternatives, together
    return intervals.would_have_seen(list(rows.values()))
