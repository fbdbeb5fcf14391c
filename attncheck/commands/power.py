"""`attncheck power`: which known-wrong simulators a profile sees, and how surely."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from attncheck.errors import InputError, check_choice, check_whole
from attncheck.exit_codes import ExitCode
from attncheck.faults import FAULTS
from attncheck.power import Entry, power_table

# Single looks that verify the best row of each fault and exposure.
_SEEDS = 300
_COLUMNS = f"{'fault':26} {'exposed':8} {'seen':>6} {'verified':>10} {'draws':>9} {'needed':>9}  first seen by"


def print_power(
    profile: str,
    *,
    quick: bool = False,
    faults: Sequence[str] = (),
    seed: str = "0",
    workers: str = "1",
    out: Path | None = None,
) -> int:
    """Measure the power of a profile and print it; the arguments are those of `attncheck power`.

    Raises
    ------
    InputError
        If an argument cannot be used, or `out` cannot be written.
    """
    number = check_whole("seed", _number(seed), 0, "pass a whole number")
    processes = os.cpu_count() if workers == "auto" else _number(workers)
    processes = check_whole("workers", processes, 1, "pass a number of processes, or auto")
    names = tuple(check_choice("fault", name, tuple(FAULTS)) for name in faults) or tuple(FAULTS)
    print(f"Chance that a run with the profile {profile} calls a known-wrong simulator violated, seed {number}:")
    print(_COLUMNS, flush=True)
    table = []
    for entry in _measured(names, profile, 0 if quick else _SEEDS, number, processes):
        print(_line(entry, profile), flush=True)
        table.append(entry)
    if out is not None:
        _write(table, profile, out)
    return ExitCode.CONSISTENT


def _measured(names: Sequence[str], profile: str, looks: int, seed: int, workers: int) -> Iterator[Entry]:
    """Iterate over the entries: as they come from this process, or all at the end from several."""
    measure = functools.partial(power_table, profiles=(profile,), seeds=looks, seed=seed)
    if workers > 1:
        yield from measure(names, workers=workers, report=_progress)
        return
    for name in names:
        yield from measure((name,))


def _progress(fault: str) -> None:
    if sys.stderr.isatty():
        print(f"measured {fault}", file=sys.stderr)


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _line(entry: Entry, profile: str) -> str:
    row = entry.best(profile)
    head = f"{entry.fault:26} {entry.exposure:8} {entry.chance(profile):6.1%}"
    if row is None or row.needed is None:
        reason = "no check that is planned tells it from chance"
        return f"{head} {'-':>10} {'-':>9} {'-':>9}  {reason}"
    verified = f"{row.seen}/{row.looks}" if row.looks else "-"
    return f"{head} {verified:>10} {row.size:>9} {row.needed:>9}  {row.sight.check.name} on {row.layer.describe()}"


def _write(table: Iterable[Entry], profile: str, out: Path) -> None:
    """Write the table as a report reads it."""
    cells = []
    for entry in table:
        row = entry.best(profile)
        check = "" if row is None or row.needed is None else row.sight.check.name
        cells.append({"fault": entry.fault, "exposure": entry.exposure, "power": entry.chance(profile), "check": check})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(msgspec.json.format(msgspec.json.encode({"profile": profile, "cells": cells})) + b"\n")
    except OSError as error:
        raise InputError(f"out={out}: cannot be written ({error.strerror}); choose another path") from None
