"""Collection of results from reports, and the terminal summary."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

if TYPE_CHECKING:
    from attncheck.runs.reporting import RunReport


class ReportPayload(TypedDict):
    """Results of a test item, or the reason why there are none, as built-in types."""

    results: list[dict[str, Any]]
    unusable: str
    traceback: str


def parcel(results: list[dict[str, Any]] | None = None, unusable: str = "") -> ReportPayload:
    """Return a payload; empty by default."""
    return {"results": results or [], "unusable": unusable, "traceback": ""}


def payload_of(report: pytest.TestReport | pytest.CollectReport) -> ReportPayload:
    """Return the payload of a report, empty if there is none."""
    payload: ReportPayload = getattr(report, "attncheck", parcel())
    return payload


def ship(report: pytest.TestReport, sent: ReportPayload) -> None:
    """Attach a payload to a report as an attribute, because report properties are written to JUnit files."""
    vars(report)["attncheck"] = sent


class Reporter:
    """Collects results from reports and prints the summary."""

    def __init__(self, report: RunReport, page: str | None) -> None:
        self.report = report
        self.page = page
        self.rendered = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the results of a finished item."""
        import msgspec

        from attncheck.records.schema import Result

        came = payload_of(report)
        self.report.take(msgspec.convert(came["results"], list[Result]), came["unusable"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Conclude the run and set the exit code."""
        consistent = self.report.finish()
        if not consistent and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.page and self.report.run.record:
            from attncheck._lib.exit_codes import ExitCode
            from attncheck.report import rendered

            self.rendered, written = rendered(self.report.run.record, Path(self.page))
            if not written and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = ExitCode.UNUSABLE

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Print the verdict, then the table, and each violated layer if verbose."""
        failed = terminalreporter.stats.get("failed", [])
        if not _wants_details(terminalreporter.config):
            terminalreporter.stats["failed"] = _once([report for report in failed if not payload_of(report)["results"]])
        try:
            return (yield)
        finally:
            if failed:
                terminalreporter.stats["failed"] = failed
            verbose = terminalreporter.verbosity > 0
            terminalreporter.section("attncheck")
            terminalreporter.write_line(self.report.summary(terminalreporter.hasmarkup, verbose))
            if self.rendered:
                terminalreporter.write_line(self.rendered)


def _once(failed: Iterable[Any]) -> list[Any]:
    """Return the first failure at each location in the subject's code, and all failures without a location."""
    unique: dict[object, Any] = {}
    for report in failed:
        unique.setdefault(payload_of(report)["traceback"] or object(), report)
    return list(unique.values())


def _wants_details(config: pytest.Config) -> bool:
    """Return whether the option -v or -r asks for each failure."""
    listing = any(str(argument).startswith("-r") for argument in config.invocation_params.args)
    return config.get_verbosity() > 0 or listing
