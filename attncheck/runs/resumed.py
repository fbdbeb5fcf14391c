"""What a run that was interrupted has left: results that the same run need not examine again."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

from attncheck._lib.errors import refuse
from attncheck.checks.registry import checks_of
from attncheck.records.manifest import installed_versions
from attncheck.records.schema import Manifest, Result, StatementResult, of_pool, read


@dataclasses.dataclass(frozen=True)
class ResumedRun:
    """The finished part of a run.

    Attributes
    ----------
    items : mapping of str to list of Result
        Results of the units of which all are there, by unit. Pools are made again: they rest on these.
    theory : mapping of str to StatementResult
        Statements of the theory, by id.
    """

    items: Mapping[str, list[Result]] = dataclasses.field(default_factory=dict)
    theory: Mapping[str, StatementResult] = dataclasses.field(default_factory=dict)


def earlier_of(path: Path, same: Mapping[str, object]) -> ResumedRun:
    """Return what a record holds of the run that goes on with it.

    Parameters
    ----------
    path : Path
        The record of the interrupted run.
    same : mapping of str to object
        Fields of the manifest, and what they must be.

    Raises
    ------
    InputError
        If the record cannot be read, or is of another run: with the first field that differs.
    """
    lines = read(path)
    manifest = next(lines)
    assert isinstance(manifest, Manifest)
    for field, value in {"versions": installed_versions(), **same}.items():
        if getattr(manifest, field) != value:
            if field == "source":
                refuse("resume", str(path), "is of a simulator whose file has changed since", "begin the run anew")
            problem = f"is of a run with {field.replace('_', ' ')} {getattr(manifest, field)}, and here it is {value}"
            refuse("resume", str(path), problem, "run it as it was begun, or without --resume")
    items: dict[str, list[Result]] = {}
    theory: dict[str, StatementResult] = {}
    for line in lines:
        if isinstance(line, StatementResult):
            theory[line.id] = line
        elif isinstance(line, Result) and not of_pool(line):
            items.setdefault(line.item, []).append(line)
    whole = {item: results for item, results in items.items() if len(results) == _owed(item)}
    return ResumedRun(whole, theory)


def set_aside(earlier: Path | None, record: Path) -> Path | None:
    """Return where the record of an interrupted run is, after its name was cleared if this run writes to it."""
    if earlier is None or earlier != record:
        return earlier
    if not earlier.exists():
        return earlier.with_name(f"{earlier.name}.interrupted")
    # One that holds more stays: this run may be interrupted before it has written what it took over.
    names = (f"{earlier.name}.interrupted{number}" for number in itertools.chain([""], map(str, itertools.count(2))))
    paths = (earlier.with_name(name) for name in names)
    aside = next(path for path in paths if not path.exists() or path.stat().st_size <= earlier.stat().st_size)
    return earlier.replace(aside)


def _owed(item: str) -> int:
    """Return how many results a unit has."""
    return len(checks_of(item.partition("@")[0]))
