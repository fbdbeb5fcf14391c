"""What a person sees while the properties run: a bar on a terminal, and what goes wrong as it does."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
from rich.progress import Progress, TaskID

from attncheck._lib.processes import interrupts_held
from attncheck.diagnosis.messages import explain
from attncheck.pytest_plugin import Reporter, shipped
from attncheck.records.schema import Result
from attncheck.runs.reporting import RunReport

# What pytest-xdist says of an item that took its worker down.
_CRASH = "crashed while running"


class Live:
    """A pytest plugin in the place of pytest's terminal: it shows progress and collects what is not in a record.

    Attributes
    ----------
    reporter : attncheck.pytest_plugin.Reporter or None
        Who has the report, once the run has ended.
    unusable : list of str
        Input errors of the subject, each once.
    traceback : str
        Where the subject failed first.
    failed : list of str
        Tests without results in the ledger that failed, and workers that crashed.
    interrupted : bool
        Whether somebody pressed Ctrl-C.
    """

    def __init__(self, progress: Progress, record: Path, subject: str, verbose: bool = False) -> None:
        self.reporter: Reporter | None = None
        self.unusable: list[str] = []
        self.traceback = ""
        self.failed: list[str] = []
        self.interrupted = False
        self._violated = self._quarters = 0
        self._started = time.perf_counter()
        self._progress = progress
        self._record = record
        self._subject = subject
        self._verbose = verbose
        self._task: TaskID = progress.add_task("collecting", total=None)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Generator[None, None, None]:
        """Hold Ctrl-C back while pytest-xdist begins its workers, which admit it once they are ready for it."""
        with interrupts_held():
            yield

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learn how much there is to do, where this process does it."""
        if session.items:
            self._progress.update(self._task, total=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Learn how much there is to do, where workers do it."""
        self._progress.update(self._task, total=len(ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what kept properties from being collected."""
        if report.failed:
            self._failure(report.nodeid, report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a finished item, and show what it has to say."""
        came = shipped(report)
        results = [msgspec.convert(fields, Result) for fields in came["results"]]
        message = explain(results, self._record, subject=self._subject)
        if message:
            self._violated += 1
            if self._verbose:
                self._show(message)
        elif came["unusable"]:
            self._add(self.unusable, came["unusable"])
            self.traceback = self.traceback or came["traceback"]
        elif report.failed:
            self._failure(report.nodeid, report)
        name = report.nodeid.rpartition("::")[2].partition("[")[0].removeprefix("test_")[:24]
        bad = f"{self._violated} violated, " if self._violated else ""
        self._progress.update(self._task, description=bad + name, advance=report.when == "teardown")
        self._tell_how_far()
        if self._progress.finished:  # what follows are further looks at suspicious pools
            self._progress.update(self._task, description="all together")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Tell Ctrl-C from pytest's own ways to end early."""
        self.interrupted = not isinstance(excinfo.value, pytest.Session.Interrupted)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep who concludes the report and renders it, now or right after."""
        self.reporter = session.config.pluginmanager.get_plugin("attncheck-reporter")

    @property
    def report(self) -> RunReport | None:
        """The plugin's report, once the run has ended."""
        return None if self.reporter is None else self.reporter.report

    @property
    def rendered(self) -> str:
        """Where the page of the report is, or why there is none; empty if nobody asked for one."""
        return "" if self.reporter is None else self.reporter.rendered

    def _failure(self, name: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        text = report.longreprtext.strip()
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(getattr(crash, "message", "") or text.rpartition("\n")[2]) or "failed"
        said = "the process that examined it crashed" if _CRASH in reason else reason.splitlines()[0]
        self._add(self.failed, f"{name}: {said}")

    def _tell_how_far(self) -> None:
        """Say on standard error how far it is at each quarter, where no bar does."""
        task = self._progress.tasks[self._task]
        quarter = int(4 * task.completed / task.total) if task.total else 0
        if quarter > self._quarters and not self._progress.console.is_terminal:
            bad = f", {self._violated} violated" if self._violated else ""
            seconds = time.perf_counter() - self._started
            print(f"{25 * quarter}% examined after {seconds:.0f} s{bad}", file=sys.stderr, flush=True)
        self._quarters = quarter

    def _show(self, text: str) -> None:
        """Print a message above the bar, or on standard output where there is no bar."""
        if self._progress.console.is_terminal:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def _add(self, texts: list[str], text: str) -> None:
        if text not in texts:
            texts.append(text)
