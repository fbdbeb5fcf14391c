"""Content of the first screen: claims by case."""

from __future__ import annotations

import dataclasses
from collections import Counter

from attncheck.diagnosis.causes import stage
from attncheck.evidence.verdicts import Verdict
from attncheck.records.run_record import RunRecord

# Maximum number of cases, which are columns, in the map of claims.
_COLUMNS = 40


@dataclasses.dataclass(frozen=True)
class ClaimMap:
    """Worst verdict on each claim (``rows``) and case; ``left`` is the number of cases not shown."""

    cases: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    left: int


def claim_map(record: RunRecord) -> ClaimMap | None:
    """Return the worst verdict on each claim by case, or None if no case was examined."""
    layers = record.space.layers
    if not layers:
        return None
    # Violated cases take precedence.
    chosen = sorted(layers, key=lambda key: (key not in record.space.violated, *layers[key], key))[:_COLUMNS]
    claims = Counter(key for verdicts in record.claim_layers.values() for key in verdicts)
    columns = sorted(chosen, key=lambda key: (-claims[key], *layers[key], key))
    rows = tuple(
        (claim, tuple(record.claim_layers[claim].get(key, str(Verdict.NOT_EXAMINED)) for key in columns))
        for claim in sorted(record.claim_layers, key=stage)
    )
    return ClaimMap(tuple(layers[key][1] for key in columns), rows, len(layers) - len(columns))
