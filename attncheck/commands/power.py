"""`attncheck power`: which known-wrong simulators a profile sees, and how surely."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from attncheck.errors import InputError, check_choice, check_whole
from attncheck.exit_codes import ExitCode
from attncheck.faults import EXPOSURES, FAULTS
from attncheck.power import Entry, power_table

# Single looks that verify the best row of each fault and exposure.
_SEEDS = 300
_COLUMNS = f"{'fault':26} {'exposed':8} {'seen':>6} {'verified':>10} {'draws':>9} {'needed':>9}  first seen by"


def print_power(
    profile: str, *, quick: bool = False, faults: Sequence[str] = (), seed: str = "0", out: Path | None = None
) -> int:
    """Measure the power of a profile and print it, a line at a time; the arguments are those of `attncheck power`.

    Raises
    ------
    InputError
        If an argument cannot be used, or `out` cannot be written.
    """
    number = check_whole("seed", int(seed) if seed.isdecimal() else seed, 0, "pass a whole number")
    for name in faults:
        check_choice("fault", name, tuple(FAULTS))
    print(f"Chance that a run with the profile {profile} calls a known-wrong simulator violated, seed {number}:")
    print(_COLUMNS, flush=True)
    table = power_table(
        tuple(faults) or tuple(FAULTS),
        tuple(EXPOSURES),
        (profile,),
        seeds=0 if quick else _SEEDS,
        seed=number,
        report=lambda entry: print(_line(entry, profile), flush=True),
    )
    if out is not None:
        _write(table, profile, out)
    return ExitCode.CONSISTENT


def _line(entry: Entry, profile: str) -> str:
    row = entry.best(profile)
    head = f"{entry.fault:26} {entry.exposure:8} {entry.chance(profile):6.1%}"
    if row is None:
        return f"{head} {'-':>10} {'-':>9} {'-':>9}  not seen: nothing that is exposed shows it"
    verified = f"{row.seen}/{row.looks}" if row.looks else "-"
    needed = "-" if row.needed is None else str(row.needed)
    return f"{head} {verified:>10} {row.size:>9} {needed:>9}  {row.sight.check.name} on {row.layer.describe()}"


def _write(table: Iterable[Entry], profile: str, out: Path) -> None:
    """Write the table as a report reads it."""
    cells = []
    for entry in table:
        row = entry.best(profile)
        check = "" if row is None else row.sight.check.name
        cells.append({"fault": entry.fault, "exposure": entry.exposure, "power": entry.chance(profile), "check": check})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(msgspec.json.format(msgspec.json.encode({"profile": profile, "cells": cells})) + b"\n")
    except OSError as error:
        raise InputError(f"out={out}: cannot be written ({error.strerror}); choose another path") from None
