"""`attncheck power`: which known-wrong simulators a profile sees, and how surely."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attncheck._lib.errors import check_choice
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_whole
from attncheck.commands.arguments import Out, ProfileName, seed_of

if TYPE_CHECKING:
    from attncheck.calibration.power import PowerEntry

# Single looks that verify the best row of each fault and exposure.
_SEEDS = 300
_COLUMNS = f"{'fault':26} {'exposed':8} {'seen':>6} {'verified':>10} {'draws':>9} {'needed':>9}  first seen by"


def power(
    *fault: str,
    profile: ProfileName = "default",
    quick: bool = False,
    seed: str = "0",
    workers: str = "0",
    executor: str | None = None,
    out: Annotated[Path | None, Out] = None,
) -> int:
    """Measure which known-wrong simulators are seen, and how surely.

    Parameters
    ----------
    fault
        Known-wrong simulators, which attncheck explain faults lists; without any, all are measured, for hours.
    profile
        What a look may cost.
    quick
        Say what is planned, without the looks that verify it: a minute or some per fault.
    seed
        A whole number: the same seed gives the same digits.
    workers
        Processes to use, or auto; 0 measures in this process.
    executor
        Who does the work in their place, as for attncheck run.
    out
        Write the table as JSON to this file, for attncheck report --power.
    """
    from attncheck._lib.executor_spec import spec_of
    from attncheck.calibration.power import power_table
    from attncheck.calibration.power.text import to_json
    from attncheck.faults import FAULTS

    number, spec = seed_of(seed), spec_of(executor, workers)
    names = tuple(check_choice("fault", name, tuple(FAULTS)) for name in fault) or tuple(FAULTS)
    print(f"Chance that a run with the profile {profile} calls a known-wrong simulator violated, seed {number}:")
    print(_COLUMNS, flush=True)
    table = []
    looks = 0 if quick else _SEEDS
    for entry in power_table(names, profiles=(profile,), seeds=looks, seed=number, spec=spec):
        print(_line(entry, profile), flush=True)
        table.append(entry)
    if out is not None:
        write_whole(out, to_json(table, profile) + b"\n")
    return ExitCode.CONSISTENT


def _line(entry: PowerEntry, profile: str) -> str:
    row = entry.best(profile)
    head = f"{entry.fault:26} {entry.exposure:8} {entry.chance(profile):6.1%}"
    if row is None or row.needed is None:
        untold = "no check that is planned tells it from chance"
        reason = "it changes none of the fixed layers that the profile visits" if row is None else untold
        return f"{head} {'-':>10} {'-':>9} {'-':>9}  {reason}"
    verified = f"{row.seen}/{row.looks}" if row.looks else "-"
    return f"{head} {verified:>10} {row.size:>9} {row.needed:>9}  {row.sight.check.name} on {row.layer.describe()}"
