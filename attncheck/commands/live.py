"""Live display of progress and violations."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.progress import Progress, TaskID

from attncheck.diagnosis.messages import explain
from attncheck.records.schema import Result
from attncheck.runs.run import Run


class LiveDisplay:
    """Shows progress; with `verbose`, each violated layer as it is found."""

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
        """Count a finished item, and show violations."""
        self._tell(results)
        bad = f"{self._violated} violated, " if self._violated else ""
        self._progress.update(self._task, description=bad + name[:24], advance=1)
        self._tell_how_far()

    def together(self) -> None:
        """Announce further looks at suspicious pools."""
        self._progress.update(self._task, description="all together")

    def took_pools(self, results: Sequence[Result]) -> None:
        """Show violated pools."""
        for result in results:
            self._tell([result])

    def _tell(self, results: Sequence[Result]) -> None:
        message = explain(results, self._run.record, subject=self._run.subject.name)
        self._violated += bool(message)
        if message and self._verbose:
            self._show(message)

    def _tell_how_far(self) -> None:
        """Report every completed quarter on standard error if there is no progress bar."""
        task = self._progress.tasks[self._task]
        quarter = int(4 * task.completed / task.total) if task.total else 0
        if quarter > self._quarters and not self._progress.console.is_terminal:
            bad = f", {self._violated} violated" if self._violated else ""
            seconds = time.perf_counter() - self._started
            print(f"{25 * quarter}% done after {seconds:.0f} s{bad}", file=sys.stderr, flush=True)
        self._quarters = quarter

    def _show(self, text: str) -> None:
        """Print a message above the bar, or on standard output."""
        if self._progress.console.is_terminal:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)
