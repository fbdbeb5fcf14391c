"""`attncheck run`: arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attncheck.commands.arguments import Chance, Draws, Natural, ProfileName, Seconds, Seed, Verbose
from attncheck.runs.options import RECORD, TIMEOUT, RunOptions


def run(
    *,
    profile: ProfileName = "default",
    subject: str | None = None,
    seed: Seed = 0,
    false_alarm: Chance = 1e-6,
    draws: Draws | None = None,
    min_examined: Natural | None = None,
    record: Path = RECORD,
    report: Path | None = None,
    workers: str = "auto",
    executor: str | None = None,
    only: list[str] | None = None,
    checks: list[str] | None = None,
    timeout: Seconds = TIMEOUT,
    verbose: Annotated[bool, Verbose] = False,
) -> int:
    """Test a simulator against the theorem and write a record.

    Parameters
    ----------
    profile
        Sample sizes: smoke takes 10 to 30 seconds, default a minute or two, thorough longer.
    subject
        Simulator to test, MODULE:CALLABLE; default: ATTNCHECK_SUBJECT, else the built-in literal simulator.
    seed
        Whole number, or random. Results depend on it, not on the number of workers.
    false_alarm
        Probability of a violated verdict for a correct simulator, over the whole run.
    draws
        With --profile thorough: draws that a look may take at any case, however costly.
    min_examined
        Minimum number of examined results for a pass.
    record
        Write the record to this path. A run that cannot begin renames an earlier one to PATH.earlier.
    report
        Also write an HTML report to this path.
    workers
        Number of processes, or auto; 0 runs in this process.
    executor
        Cluster to use instead of processes: dask:tcp://HOST:PORT.
    only
        Test only these properties, such as scores,draws; can be repeated.
    checks
        Also test with the checks that this module registers; can be repeated. See docs/extend.md.
    timeout
        Seconds that one call of the subject may take.
    verbose
        Print each violation as it is found, and the checks that were examined on no case.
    """
    options = RunOptions(
        subject=subject,
        seed=seed,
        profile=profile,
        false_alarm=false_alarm,
        draws=draws,
        min_examined=min_examined,
        only=tuple(only or ()),
        checks=tuple(checks or ()),
        timeout=timeout,
        record=record,
    )
    from attncheck.commands.session import run_properties

    return run_properties(options, report=report, workers=workers, executor=executor, verbose=verbose)
