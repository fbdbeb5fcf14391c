"""`attncheck power`: arguments and output table."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from attncheck._lib.errors import check_choice
from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.arguments import Natural, ProfileName

if TYPE_CHECKING:
    from attncheck.calibration.power import PowerEntry

# Number of looks that verify the best row of each fault and each set of returned fields.
_SEEDS = 300
_COLUMNS = f"{'fault':26} {'exposed':8} {'seen':>6} {'verified':>10} {'draws':>9} {'needed':>9}  first seen by"


def power(
    *fault: str,
    profile: ProfileName = "default",
    quick: bool = False,
    seed: Natural = 0,
    workers: str = "0",
    executor: str | None = None,
    checks: list[str] | None = None,
) -> int:
    """Measure with which probability known-wrong simulators are detected.

    Parameters
    ----------
    fault
        Known-wrong simulators, as listed by attncheck explain faults; default: all, which takes hours.
    profile
        Sample sizes.
    quick
        Print planned probabilities without verifying them: about a minute per fault.
    seed
        Seed of the measurement.
    workers
        Number of processes, or auto; 0 runs in this process.
    executor
        Cluster to use instead of processes, as for attncheck run.
    checks
        Module that registers further checks, whose faults can be named as MODULE:FUNCTION; can be repeated.
    """
    from attncheck._lib.executors import workers_of
    from attncheck.calibration.power import entries_of
    from attncheck.checks.registered import load_checks
    from attncheck.faults import EXPOSURES, FAULTS, all_faults

    modules = tuple(checks or ())
    load_checks(modules)
    running = workers_of(executor, workers)
    names = tuple(check_choice("fault", name, tuple(all_faults())) for name in fault) or tuple(FAULTS)
    print(f"Probability that a run with profile {profile} detects a known-wrong simulator, seed {seed}:")
    print(_COLUMNS, flush=True)
    looks = 0 if quick else _SEEDS
    measure = functools.partial(
        entries_of, exposures=tuple(EXPOSURES), profile=profile, seeds=looks, seed=seed, checks=modules
    )
    with running:
        for entries in running.in_order(measure, names):
            print(*map(_line, entries), sep="\n", flush=True)
    return ExitCode.CONSISTENT


def _line(entry: PowerEntry) -> str:
    row = entry.best
    head = f"{entry.fault:26} {entry.exposure:8} {row.chance if row else 0.0:6.1%}"
    if row is None or row.needed is None:
        untold = "no planned check detects it"
        reason = "it changes none of the fixed layers of this profile" if row is None else untold
        return f"{head} {'-':>10} {'-':>9} {'-':>9}  {reason}"
    verified = f"{row.seen}/{row.looks}" if row.looks else "-"
    return f"{head} {verified:>10} {row.size:>9} {row.needed:>9}  {row.sight.check.name} on {row.layer.describe()}"
