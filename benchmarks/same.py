"""Compare two records of the same run by id: ``python benchmarks/same.py OLD NEW``.

Lists ids in only one record, differing verdicts, and numbers that differ by more than 1e-9 in relative terms;
ignores names, messages and the order of lines. Exit code: 0 same, 1 different, 2 unreadable record.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from attncheck._lib.errors import InputError
from attncheck.records.schema import Closing, Result, read

#: Relative tolerance.
TOLERANCE = 1e-9
#: Numeric fields of a result except the seconds; those of its looks are series.
NUMBERS = (
    "size",
    "affordable",
    "level",
    "power",
    "effect",
    "low",
    "high",
    "null_effect",
    "mde",
    "alternative",
    "combined",
)
SERIES = ("p_values", "effects")
# Listed lines per kind.
_LISTED = 20


def read_lines(path: Path) -> tuple[dict[str, Result], str]:
    """Return a record's contents by id, and its digest, empty if the run did not end."""
    lines: dict[str, Result] = {}
    digest = ""
    for line in read(path):
        if isinstance(line, Result):
            if line.id in lines:
                raise InputError(f"record={path}: {line.id} comes twice; make the record again")
            lines[line.id] = line
        elif isinstance(line, Closing):
            digest = line.digest
    return lines, digest


def numbers_of(line: Result) -> dict[str, float | None]:
    """Return the numbers of a result by name; series are indexed too."""
    fields = msgspec.structs.asdict(line)
    series = {f"{name}[{place}]": value for name in SERIES for place, value in enumerate(fields[name], 1)}
    return {name: fields[name] for name in NUMBERS} | series


def far(old: float | None, new: float | None) -> bool:
    """Return whether two numbers differ by more than `TOLERANCE`.

    Examples
    --------
    >>> far(1.0, 1.0 + 1e-12), far(1.0, 1.0 + 1e-6), far(None, 0.0), far(None, None)
    (False, True, True, False)
    """
    if old is None or new is None:
        return old is not new
    return not math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=0.0)


def changed_numbers(old: Result, new: Result) -> Iterator[str]:
    """Yield the numbers that differ, each with both values."""
    if old.case.get("of") != new.case.get("of"):
        yield "a pool of other cases"
    before, now = numbers_of(old), numbers_of(new)
    for name in dict.fromkeys((*before, *now)):
        if far(before.get(name), now.get(name)):
            yield f"{name} {before.get(name)!r} -> {now.get(name)!r}"


def differences(old: Mapping[str, Result], new: Mapping[str, Result]) -> dict[str, list[str]]:
    """Return differing keys with their details, by kind."""
    both = sorted(old.keys() & new.keys())
    moved = [key for key in both if old[key].verdict != new[key].verdict]
    numbers = [(key, list(changed_numbers(old[key], new[key]))) for key in both]
    return {
        "only in the old record": sorted(old.keys() - new.keys()),
        "only in the new record": sorted(new.keys() - old.keys()),
        "with another verdict": [f"{key}: {old[key].verdict} -> {new[key].verdict}" for key in moved],
        "with other numbers": [f"{key}: {'; '.join(found)}" for key, found in numbers if found],
    }


def told(found: Mapping[str, Sequence[str]], common: int, digests: Sequence[str]) -> Iterator[str]:
    same = "the same" if len(set(digests)) == 1 and digests[0] else "differ"
    yield f"{common} keys in both; digests {same}: {' and '.join(each or 'none' for each in digests)}"
    for what, lines in found.items():
        if lines:
            yield f"{len(lines)} {what}:"
            yield from (f"  {line}" for line in _cut(lines))
    if not any(found.values()):
        yield f"Nothing differs by more than {TOLERANCE:g} of its size."


def _cut(lines: Sequence[str]) -> Iterable[str]:
    return [*lines[:_LISTED], f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="record of a run")
    parser.add_argument("new", type=Path, help="record of the same run, after the change")
    given = parser.parse_args(arguments)
    try:
        (old, old_digest), (new, new_digest) = read_lines(given.old), read_lines(given.new)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    found = differences(old, new)
    print("\n".join(told(found, len(old.keys() & new.keys()), (old_digest, new_digest))))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
