"""`attncheck run`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attncheck.commands.arguments import ProfileName, Verbose

#: Where a record goes if nobody says where.
RECORD = Path("reports/output/record.jsonl")


def run(
    *,
    profile: ProfileName = "default",
    subject: str | None = None,
    seed: str = "0",
    false_alarm: str = "1e-6",
    draws: str | None = None,
    min_examined: str | None = None,
    record: Path = RECORD,
    report: Path | None = None,
    workers: str = "auto",
    executor: str | None = None,
    only: list[str] | None = None,
    theory: bool = False,
    resume: Path | None = None,
    shard: str | None = None,
    owed: Path | None = None,
    verbose: Annotated[bool, Verbose] = False,
) -> int:
    """Hold a simulator to the theorem, and write a record of it.

    Parameters
    ----------
    profile
        smoke takes half a minute, default some minutes, and thorough as many draws as --draws says.
    subject
        The simulator to examine, MODULE:CALLABLE; by default ATTNCHECK_SUBJECT, or attncheck's literal one.
    seed
        A whole number, random, or keyed, by the commit: the same seed gives the same digits with any number of workers.
    false_alarm
        The chance that a right simulator is called violated anywhere in the run.
    draws
        With the thorough profile: about what the first looks of the whole run take.
    min_examined
        Examined results below which the run is inconclusive.
    record
        Where the record goes.
    report
        Render the record as an HTML page at the end, to this path.
    workers
        Processes to use, or auto; 0 examines in this process.
    executor
        Who does the work in their place: MODULE:MAKE, which returns a concurrent.futures.Executor, or
        dask:tcp://HOST:PORT. --workers is how much an executor has at a time.
    only
        A property to examine, such as scores, and no other; may be given several times.
    theory
        Examine the statements of attncheck's own theory too, which say nothing of the simulator.
    resume
        The record of an interrupted run to resume.
    shard
        Examine a part of the run, such as 2/8, the second of eight; attncheck merge makes one record of all.
    owed
        A merged record, which is completed: take the further looks that it owes. All else is as it says.
    verbose
        Show each violated layer as it is found, and all that was skipped, visited and could have been seen.
    """
    if owed is not None:
        from attncheck.commands.merging import take_owed

        given = {
            "profile": profile != "default",
            "seed": seed != "0",
            "false_alarm": false_alarm != "1e-6",
            "record": record != RECORD,
            **{name: value is not None for name, value in (("draws", draws), ("resume", resume), ("shard", shard))},
            "only": bool(only),
            "theory": theory,
        }
        return take_owed(
            owed,
            subject,
            given=[name for name, was in given.items() if was],
            workers=workers,
            executor=executor,
            min_examined=min_examined,
            report=report,
            verbose=verbose,
        )
    from attncheck.commands.session import run_properties

    return run_properties(
        profile=profile,
        subject=subject,
        seed=seed,
        false_alarm=false_alarm,
        draws=draws,
        min_examined=min_examined,
        record=record,
        report=report,
        workers=workers,
        executor=executor,
        only=only or [],
        theory=theory,
        resume=resume,
        shard=shard,
        verbose=verbose,
    )
