"""`attncheck run`: the properties on any executor, with the record of a pytest run."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attncheck._lib.errors import InputError
from attncheck._lib.executor_spec import spec_of
from attncheck._lib.executors import LostTask, TaskExecutor
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.progress import progress_bar
from attncheck.commands.live import LiveDisplay
from attncheck.commands.planned_run import PlannedRun, collect, properties_folder
from attncheck.layers.case import Case
from attncheck.looks.item import Item
from attncheck.report import rendered
from attncheck.runs.options import RunOptions
from attncheck.runs.probe import refusal
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.runs.tasks import Examination, examine
from attncheck.subject import Subject, SubjectName

# The remaining cases are given up if no case has results and calls on this many were stopped.
_HOPELESS = 3


def run_properties(
    options: RunOptions, *, report: Path | None, workers: str, executor: str | None, verbose: bool
) -> int:
    """Run the properties and print the summary, for `attncheck run`."""
    spec = spec_of(executor, workers)
    if options.subject is None:
        options = dataclasses.replace(options, subject=os.environ.get("ATTNCHECK_SUBJECT") or None)
    run = Run.of(options)
    print(run.header(), flush=True)
    with _own_storage(), progress_bar() as progress, TaskExecutor(spec) as running:
        live = LiveDisplay(progress, run, verbose)
        collected = collect(run, properties_folder())
        running.begin()  # before writing, so that a failure does not replace an older record
        refused = refusal(collected.run, _subject(collected.run, running), running.results)
        taken = ResultCollector(RunReport(collected.run, refused=refused), running, live)
        try:
            if refused is None:
                taken.all_of(collected)
                taken.report.printed = running.printed()
                taken.report.diagnose(running)
        except KeyboardInterrupt:
            taken.report.finish()
            print(_summary(taken.report, verbose), flush=True)
            print(f"Interrupted. {options.record} holds the finished results.", flush=True)
            raise
        except InputError as error:
            taken.report.finish()
            raise InputError(f"{error} ({options.record} holds the finished results)") from error
    taken.report.finish()
    return _conclude(taken, report, verbose)


def _subject(run: Run, executor: TaskExecutor) -> Subject | SubjectName:
    """Return the subject in the form sent to workers."""
    return run.subject.sent if executor.spec.travels else run.subject


class ResultCollector:
    """Collects results into a report, with the subject's first traceback."""

    def __init__(self, report: RunReport, executor: TaskExecutor, live: LiveDisplay) -> None:
        self.report = report
        self.traceback = ""
        self._executor = executor
        self._live = live

    def all_of(self, collected: PlannedRun) -> None:
        """Examine items, then the pools."""
        run = collected.run
        self._live.begin(len(collected.items))
        self._items(run, collected.items)
        self._live.together()
        cases: dict[str, Case] = {item.case.key: item.case for item in collected.items}
        pools, failed = self.report.pool(self._executor, cases)
        self.report.take(pools, *failed)
        self._live.took_pools(pools)

    def _items(self, run: Run, items: Sequence[Item]) -> None:
        costs = run.costs(items)
        # Longest first, to balance the load.
        tasks = sorted(run.tasks(items, _subject(run, self._executor)), key=lambda task: -costs[task.case.key])
        tasks = [*tasks[-1:], *tasks[:-1]]  # but start with the cheapest, which is the most likely to end in time
        stopped = 0
        for place, found in self._executor.gather(examine, tasks):
            if isinstance(found, LostTask):
                where = f"subject={run.subject.name}: on {tasks[place].case.describe()}"
                lost = Examination([], f"{where}: {found.reason}; mend the simulator")
                found = {item.id: lost for item in tasks[place].items}
            for item in tasks[place].items:
                self._take(item, found[item.id])
            stopped += all(each.stopped for each in found.values())
            if stopped == _HOPELESS and not self.report.results and len(tasks) > stopped:
                problem = f"other cases were given up after calls on {stopped} of them were stopped"
                self.report.take((), f"subject={run.subject.name}: {problem}; mend the simulator")
                break

    def _take(self, item: Item, examined: Examination) -> None:
        self.report.take(examined.results, examined.unusable)
        self.traceback = self.traceback or examined.traceback
        self._live.took(item.property_name, examined.results)


@contextmanager
def _own_storage() -> Iterator[None]:
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


def _conclude(taken: ResultCollector, page: Path | None, verbose: bool = False) -> int:
    """Print the summary and further messages; return the exit code."""
    report = taken.report
    print(_summary(report, verbose))
    if page is not None and report.run.record is not None:
        print(rendered(report.run.record, page))
    if taken.traceback:
        print(taken.traceback)
    assert report.conclusion is not None
    if report.refused is not None:
        return ExitCode.UNUSABLE
    verdict = report.conclusion.verdict
    if report.failure and verdict != "violated":
        raise InputError(report.failure)
    return ExitCode.of(verdict)
