"""`attncheck run`: the properties on any workers, with the record of a pytest run."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attncheck._lib.errors import InputError
from attncheck._lib.executors import workers_of
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.progress import progress_bar
from attncheck._lib.workers import Workers
from attncheck.commands.live import LiveDisplay
from attncheck.looks.item import Item
from attncheck.report import rendered
from attncheck.runs.loop import examined
from attncheck.runs.options import RunOptions
from attncheck.runs.probe import refusal
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run


def run_properties(
    options: RunOptions, *, report: Path | None, workers: str, executor: str | None, verbose: bool
) -> int:
    """Run the properties and print the summary, for `attncheck run`."""
    if options.subject is None:
        options = dataclasses.replace(options, subject=os.environ.get("ATTNCHECK_SUBJECT") or None)
    # A cluster that cannot be reached does not replace an older record.
    with _private_storage(), workers_of(executor, workers) as running, progress_bar() as progress:
        run = Run.of(options)
        print(run.header(), flush=True)
        live = LiveDisplay(progress, run, verbose)
        items = run.all_items
        run = run.planning(item.id for item in items)
        run_report = RunReport(run, refused=refusal(run, running))
        try:
            if run_report.refused is None:
                _take_all(run_report, items, running, live)
        except KeyboardInterrupt:
            run_report.finish()
            print(_summary(run_report, verbose), flush=True)
            print(f"Interrupted. {options.record} holds the finished results.", flush=True)
            raise
        except InputError as error:
            run_report.finish()
            raise InputError(f"{error} ({options.record} holds the finished results)") from error
    run_report.finish()
    return conclude(run_report, report, verbose)


def _take_all(run_report: RunReport, items: Sequence[Item], workers: Workers, live: LiveDisplay) -> None:
    """Examine items, then the pools, and find causes."""
    live.begin(len(items))
    for item, outcome in examined(run_report.run, items, workers):
        run_report.take(outcome.results, outcome.unusable)
        run_report.traceback = run_report.traceback or outcome.traceback
        live.took(item.property_name, outcome.results)
    live.together()
    violated, failed = run_report.pool(workers, {item.case.key: item.case for item in items})
    run_report.take(violated, *failed)
    live.took_pools(violated)
    run_report.diagnose(workers)


@contextmanager
def _private_storage() -> Iterator[None]:
    """Stop hypothesis, also in child processes, from writing to the current folder."""
    name = "HYPOTHESIS_STORAGE_DIRECTORY"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory(prefix="attncheck-") as scratch:
        os.environ[name] = scratch
        try:
            yield
        finally:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


def _summary(report: RunReport, verbose: bool) -> str:
    sys.stdout.flush()
    return report.summary(sys.stdout.isatty(), verbose)


def conclude(report: RunReport, page: Path | None, verbose: bool = False) -> int:
    """Print the summary and further messages; return the exit code."""
    print(_summary(report, verbose))
    if page is not None and report.run.record is not None:
        print(rendered(report.run.record, page))
    if report.traceback:
        print(report.traceback)
    assert report.record is not None
    if report.refused is not None:
        return ExitCode.UNUSABLE
    verdict = report.record.conclusion.verdict
    if report.failure and verdict != "violated":
        raise InputError(report.failure)
    return ExitCode.of(verdict)
