"""Compare two records of the same run by id: ``python benchmarks/same.py OLD NEW``.

Lists ids in only one record, differing verdicts, and numbers that differ by more than 1e-9 in relative terms;
ignores names, messages and the order of lines. Exit code: 0 same, 1 different, 2 unreadable record.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from attncheck._lib.errors import InputError
from attncheck.records.schema import Result
from attncheck.runs.parts import read_run

#: Relative tolerance.
TOLERANCE = 1e-9
# Fields that are numbers, or None, and not compared.
_OTHER = ("seconds", "plot", "summary")


def numbers_of(line: Result) -> dict[str, float | None]:
    """Return the numbers of a result by name, except the seconds; series are indexed."""
    fields = msgspec.structs.asdict(line)
    series = {f"{name}[{k}]": x for name in ("p_values", "effects") for k, x in enumerate(fields[name], 1)}
    plain = {name: x for name, x in fields.items() if name not in _OTHER and (x is None or isinstance(x, int | float))}
    return plain | series


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
            yield from (f"  {line}" for line in lines)
    if not any(found.values()):
        yield f"Nothing differs by more than {TOLERANCE:g} of its size."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="record of a run")
    parser.add_argument("new", type=Path, help="record of the same run, after the change")
    given = parser.parse_args(arguments)
    try:
        old, new = (read_run(path) for path in (given.old, given.new))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    found = differences(old.by_id, new.by_id)
    print("\n".join(told(found, len(old.by_id.keys() & new.by_id.keys()), (old.digest, new.digest))))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
