"""Results of an interrupted run, to resume it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

from attncheck._lib.errors import refuse
from attncheck.checks.registry import checks_of
from attncheck.records.manifest import installed_versions
from attncheck.records.run_record import read_record
from attncheck.records.schema import Result, StatementResult


@dataclasses.dataclass(frozen=True)
class ResumedRun:
    """Results of complete test items, by item and without pools, and results of statements, by id."""

    items: Mapping[str, list[Result]] = dataclasses.field(default_factory=dict)
    theory: Mapping[str, StatementResult] = dataclasses.field(default_factory=dict)


def earlier_of(path: Path, same: Mapping[str, object]) -> ResumedRun:
    """Return the results in a record; raises InputError if a field of its manifest differs from `same`."""
    found = read_record(path)
    for field, value in {"versions": installed_versions(), **same}.items():
        if (own := getattr(found.manifest, field)) != value:
            if field == "source":
                refuse("resume", str(path), "belongs to a simulator whose file has since changed", "start a new run")
            problem = f"is of a run with {field.replace('_', ' ')} {own}, not {value}"
            refuse("resume", str(path), problem, "use the original options, or omit --resume")
    items: dict[str, list[Result]] = {}
    for result in found.results:
        items.setdefault(result.item, []).append(result)
    whole = {item: results for item, results in items.items() if len(results) == _owed(item)}
    return ResumedRun(whole, {each.id: each for each in found.theory})


def set_aside(earlier: Path | None, record: Path) -> Path | None:
    """Return the path of the interrupted record `earlier`, which is renamed if this run writes to the same path."""
    if earlier is None or earlier != record:
        return earlier
    if not earlier.exists():
        return earlier.with_name(f"{earlier.name}.interrupted")
    # Keep an earlier copy that is larger: this run may be interrupted before it has copied the earlier results.
    names = (f"{earlier.name}.interrupted{number}" for number in itertools.chain([""], map(str, itertools.count(2))))
    paths = (earlier.with_name(name) for name in names)
    aside = next(path for path in paths if not path.exists() or path.stat().st_size <= earlier.stat().st_size)
    return earlier.replace(aside)


def _owed(item: str) -> int:
    """Return the number of results of a complete test item."""
    return len(checks_of(item.partition("@")[0]))
