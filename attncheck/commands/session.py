"""`attncheck run`: the properties on any workers, with progress, violations as they come, and a record."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import Progress, TaskID

from attncheck._lib.errors import InputError
from attncheck._lib.executors import workers_of
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.progress import progress_bar
from attncheck._lib.text import counted
from attncheck._lib.workers import LostTask, Workers
from attncheck.diagnosis.messages import explain
from attncheck.looks.item import Item
from attncheck.records.schema import Result
from attncheck.records.writer import set_aside
from attncheck.report import rendered
from attncheck.runs.options import RunOptions
from attncheck.runs.probe import refusal
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.runs.tasks import CaseTask, Examination, examine

# If calls were stopped, or processes ended, on this many cases before any case has results, the others are skipped.
_HOPELESS = 3


def examined(run: Run, items: Sequence[Item], workers: Workers) -> Iterator[tuple[Item, Examination]]:
    """Iterate over items and their examinations, in the order in which cases are finished.

    The order depends on the workers, but the results do not. If calls of the subject were stopped on `_HOPELESS` cases
    before any case had a result, the remaining items are not examined; they are yielded with this reason.
    """
    # The longest tasks come first, to balance the load, except that the cheapest comes before them: it is the most
    # likely one to end before the time limit.
    tasks = sorted(run.tasks(items, workers.travels), key=lambda task: -task.entries)
    tasks = [*tasks[-1:], *tasks[:-1]]
    pending = set(range(len(tasks)))
    stopped, examines = 0, False
    for index, outcome in workers.gather(examine, tasks):
        pending.discard(index)
        of_items = _lost(run, tasks[index], outcome) if isinstance(outcome, LostTask) else outcome
        yield from ((item, of_items[item.id]) for item in tasks[index].items)
        stopped += all(examination.stopped for examination in of_items.values())
        examines |= any(examination.results for examination in of_items.values())
        if stopped == _HOPELESS and not examines:
            break
    if pending:
        problem = f"the other cases were given up after calls on {stopped} cases were stopped"
        skipped = Examination([], f"subject={run.subject.name}: {problem}; mend the simulator")
        yield from ((item, skipped) for index in sorted(pending) for item in tasks[index].items)


def _lost(run: Run, task: CaseTask, lost: LostTask) -> dict[str, Examination]:
    problem = f"on {task.case.describe()}: {lost.reason}; {lost.remedy}"
    one = Examination([], f"subject={run.subject.name}: {problem}", stopped=True)
    return dict.fromkeys((item.id for item in task.items), one)


class LiveDisplay:
    """Display of progress and, if `verbose` is True, of violations as they are found."""

    def __init__(self, progress: Progress, run: Run, verbose: bool) -> None:
        self._progress = progress
        self._run = run
        self._verbose = verbose
        self._violated = self._quarters = 0
        self._started = time.perf_counter()
        self._task: TaskID = progress.add_task("collecting", total=None)

    def begin(self, total: int) -> None:
        """Set the total number of tasks."""
        self._progress.update(self._task, total=total, description="examining")

    def took(self, name: str, results: Sequence[Result]) -> None:
        """Count a finished item, and show its violations; the progress bar shows its property, `name`."""
        self.tell(results)
        bad = f"{self._violated} violated, " if self._violated else ""
        self._progress.update(self._task, description=bad + name[:24], advance=1)
        self._tell_how_far()

    def together(self) -> None:
        """Show in the progress bar that pools are being examined."""
        self._progress.update(self._task, description="all together")

    def seek(self) -> None:
        """Say that the cause of violations is being sought, which may take longer than the run."""
        self._progress.update(self._task, description="seeking the cause")
        if self._violated and not self._progress.console.is_terminal:
            print("seeking the cause of the violations", file=sys.stderr, flush=True)

    def tell(self, results: Sequence[Result]) -> None:
        """Count a violation if there is one among the results; print it, if `verbose` is True.

        In a terminal, it is printed above the progress bar.
        """
        message = explain(results, self._run.record, subject=self._run.subject.name)
        self._violated += bool(message)
        if message and self._verbose and self._progress.console.is_terminal:
            self._progress.console.print(message, markup=False, highlight=False, soft_wrap=True)
        elif message and self._verbose:
            print(message, flush=True)

    def _tell_how_far(self) -> None:
        """Report every completed quarter on standard error if there is no progress bar."""
        task = self._progress.tasks[self._task]
        quarter = int(4 * task.completed / task.total) if task.total else 0
        if quarter > self._quarters and not self._progress.console.is_terminal:
            bad = f", {self._violated} violated" if self._violated else ""
            seconds = time.perf_counter() - self._started
            print(f"{25 * quarter}% done after {seconds:.0f} s{bad}", file=sys.stderr, flush=True)
        self._quarters = quarter


def run_properties(
    options: RunOptions, *, report: Path | None, workers: str, executor: str | None, verbose: bool
) -> int:
    """Run the properties and print the summary, for `attncheck run`."""
    if options.subject is None:
        options = dataclasses.replace(options, subject=os.environ.get("ATTNCHECK_SUBJECT") or None)
    # Connect to a cluster before the record is opened, so that a failure to connect leaves an older record in place.
    with workers_of(executor, workers) as running, progress_bar() as progress:
        try:
            run = Run.of(options)
            print(run.header(), flush=True)
            live = LiveDisplay(progress, run, verbose)
            items = run.all_items
            run = run.planning(item.id for item in items)
            run_report = RunReport(run, refused=refusal(run, running))
        except (InputError, KeyboardInterrupt):
            if options.record is not None and (sentence := set_aside(options.record)):
                print(sentence, flush=True)
            raise
        try:
            if run_report.refused is None:
                _take_all(run_report, items, running, live)
        except KeyboardInterrupt:
            run_report.finish()
            print(_summary(run_report, verbose), flush=True)
            print(f"Interrupted. {_finished(run_report)}.", flush=True)
            raise
        except InputError as error:
            run_report.finish()
            raise InputError(f"{error} ({_finished(run_report)})") from error
    run_report.finish()
    return conclude(run_report, report, verbose)


def _finished(report: RunReport) -> str:
    """Return a sentence on the number of results in the record of an unfinished run."""
    return f"{report.run.record} holds {counted(len(report.results), 'finished result')}"


def _take_all(run_report: RunReport, items: Sequence[Item], workers: Workers, live: LiveDisplay) -> None:
    """Examine items, then pools, and diagnose violations."""
    live.begin(len(items))
    for item, outcome in examined(run_report.run, items, workers):
        run_report.take(outcome.results, outcome.unusable)
        run_report.traceback = run_report.traceback or outcome.traceback
        live.took(item.property_name, outcome.results)
    live.together()
    violated, failed = run_report.pool(workers, {item.case.key: item.case for item in items})
    run_report.take(violated, *failed)
    for result in violated:
        live.tell([result])
    live.seek()
    run_report.diagnose(workers)


def _summary(report: RunReport, verbose: bool) -> str:
    sys.stdout.flush()
    return report.summary(sys.stdout.isatty(), verbose)


def conclude(report: RunReport, page: Path | None, verbose: bool = False) -> int:
    """Print the summary and further messages, write the HTML page if a path is given, and return the exit code."""
    print(_summary(report, verbose))
    written = True
    if page is not None and report.run.record is not None:
        line, written = rendered(report.run.record, page)
        print(line)
    if report.traceback:
        print(report.traceback)
    assert report.record is not None
    if report.refused is not None:
        return ExitCode.UNUSABLE
    verdict = report.record.conclusion.verdict
    if report.failure and verdict != "violated":
        raise InputError(report.failure)
    code = ExitCode.of(verdict)
    return code if code or written else ExitCode.UNUSABLE
