"""`attncheck merge` and `attncheck run --owed`: combine the records of shards, and complete the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.executor_spec import spec_of
from attncheck._lib.executors import TaskExecutor
from attncheck._lib.exit_codes import ExitCode
from attncheck.checks.registered import load_checks
from attncheck.records.run_record import read_record
from attncheck.report import render_report
from attncheck.runs.merge import OWED, lacking, merged, with_looks_taken
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.subject import DEFAULT_SUBJECT, Subject


def merge_records(paths: Sequence[Path], out: Path, min_examined: int | None, verbose: bool) -> int:
    """Merge records and print the summary of the run; arguments as for `attncheck merge`."""
    if not paths:
        refuse("parts", "", "names no record", "pass the records of all shards, e.g. part*.jsonl")
    for path in paths:
        if out.exists() and path.exists() and out.samefile(path):
            refuse("out", str(out), "is the record of a shard", "choose another path")
    parts = [read_record(path) for path in paths]
    if wrong := lacking(parts):
        print("\n  ".join(["INCOMPLETE: no record was written.", *wrong]))
        return ExitCode.INCOMPLETE
    report = merged(parts, out, min_examined)
    code = _told(report, verbose)
    if OWED in report.failed:
        print(f"Further looks at suspicious pools are owed: attncheck run --owed {out}{_named(report)}")
    return code


def take_owed(
    path: Path, options: RunOptions, *, workers: str, executor: str | None, report: Path | None, verbose: bool
) -> int:
    """Run the follow-up looks that a record needs, rewrite the record and print the summary of the run.

    Only the options `subject`, `min_examined` and `checks` apply; the record determines the others.
    """
    if given := [name for name in options.given() if name not in ("subject", "min_examined", "checks")]:
        option = given[0].replace("_", "-")
        refuse("owed", str(path), f"determines {option} itself", f"omit --{option}")
    load_checks(options.checks)
    subject = options.subject or os.environ.get("ATTNCHECK_SUBJECT") or DEFAULT_SUBJECT
    with TaskExecutor(spec_of(executor, workers)) as running:
        done, messages = with_looks_taken(read_record(path), Subject.of(subject), running, options.min_examined)
    if verbose:
        print("\n\n".join(messages))
    code = _told(done, verbose)
    if report is not None:
        print(f"Report: {render_report(path, out=report)}")
    return code


def _told(report: RunReport, verbose: bool) -> ExitCode:
    """Print the summary of a run, and return its exit code."""
    print(report.summary(sys.stdout.isatty(), verbose))
    assert report.conclusion is not None
    if report.failure and report.conclusion.verdict != "violated":
        raise InputError(report.failure)
    return ExitCode.of(report.conclusion.verdict)


def _named(report: RunReport) -> str:
    subject = report.run.subject.name
    return "" if subject == DEFAULT_SUBJECT else f" --subject {subject}"
