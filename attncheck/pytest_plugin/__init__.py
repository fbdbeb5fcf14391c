"""pytest plugin: adds options, turns cases into test items, collects results from all workers, and summarises them.

Tests marked with `examines` become one item per case. Items send results with their reports, so that a crashed worker
loses one item only. The rest of attncheck is imported lazily, since pytest always imports this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attncheck.pytest_plugin import cases
from attncheck.pytest_plugin.marks import EXAMINES, examines
from attncheck.pytest_plugin.reporter import Reporter, ReportPayload, parcel, ship
from attncheck.runs.options import RECORD, TIMEOUT, RunOptions, drawn_seed

if TYPE_CHECKING:
    from attncheck._lib.workers import Workers
    from attncheck.layers.case import Case
    from attncheck.looks.item import Item
    from attncheck.runs.reporting import RunReport
    from attncheck.runs.run import Run

pytest_plugins = ["attncheck.pytest_plugin.assertions"]

__all__ = ["Hold", "Reporter", "examines"]

_DEFAULTS = dataclasses.asdict(RunOptions(seed="0", false_alarm="1e-6", only="", record=RECORD, checks=""))
_RUN: pytest.StashKey[Run] = pytest.StashKey()
_REPORT: pytest.StashKey[RunReport] = pytest.StashKey()
_PAYLOAD: pytest.StashKey[ReportPayload] = pytest.StashKey()
_CASES: pytest.StashKey[cases.CaseResults] = pytest.StashKey()

Hold = Callable[["Case"], None]


def engage(config: pytest.Config) -> None:
    """Create the run before tests are collected, so that the header shows it and bad options fail early."""
    with _input_errors_as(pytest.UsageError):
        _run_of(config)


def _set_aside(config: pytest.Config) -> None:
    """Rename the record of an earlier run if this run did not begin, because a gate would read that record."""
    from attncheck.records.writer import set_aside

    record = _option(config, "record")
    if record is None or _REPORT in config.stash or _is_worker(config) or config.option.collectonly:
        return
    if sentence := set_aside(Path(record)):
        print(sentence, file=sys.stderr)


def _is_requested(config: pytest.Config) -> bool:
    """Return whether an option or the environment requests attncheck."""
    is_requested = any(_option(config, name) != default for name, default in _DEFAULTS.items())
    return is_requested or "ATTNCHECK_SUBJECT" in os.environ or _RUN in config.stash


@contextlib.contextmanager
def _input_errors_as(kind: type[Exception]) -> Iterator[None]:
    """Convert input errors in this context to errors that pytest reports in one line."""
    from attncheck._lib.errors import InputError

    try:
        yield
    except InputError as error:
        raise kind(str(error)) from None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ``--attncheck-…`` options."""
    group = parser.getgroup("attncheck", "attncheck: does this attention simulator behave as the theorem says?")

    def add(name: str, metavar: str, text: str) -> None:
        option = "--attncheck-" + name.replace("_", "-")
        group.addoption(option, metavar=metavar, default=_DEFAULTS[name], help=text)

    add("subject", "MODULE:CALLABLE", "simulator to examine (also ATTNCHECK_SUBJECT; default: attncheck's literal one)")
    add("seed", "N|random", "run seed, which determines all random numbers (default: 0)")
    add("profile", "NAME", "smoke, default or thorough")
    add("false_alarm", "B", "probability of a violated verdict for a correct simulator, over the run (default: 1e-6)")
    add("draws", "N", "draws that a look may always take, even if costly; with profile thorough only (default: 3000)")
    add("min_examined", "N", "fewest examined results of a conclusive run (default: a quarter of the plan)")
    add("only", "NAMES", "comma-separated properties to examine (default: all)")
    add("checks", "MODULES", "comma-separated modules that register further checks, for tests that examine them")
    add("timeout", "SECONDS", f"time limit of one call of the simulator, in seconds (default: {TIMEOUT:g})")
    add("record", "PATH", f"path of the record (default: {RECORD})")
    group.addoption("--attncheck-report", metavar="PATH", help="render the record as an HTML page at the end")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and draw a random seed if one is requested."""
    config.addinivalue_line("markers", f"{EXAMINES}(name, strategy): examine a property on many layers")
    if _is_worker(config):
        # Set by pytest-xdist on workers only.
        config.option.attncheck_seed = config.workerinput["attncheck_seed"]  # type: ignore[attr-defined]  # set by xdist
    else:
        config.option.attncheck_seed = drawn_seed(config.option.attncheck_seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the seed to an xdist worker."""
    node.workerinput["attncheck_seed"] = node.config.option.attncheck_seed


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None, object, object]:
    """Create the run before collection if it is requested."""
    if not _is_requested(session.config):
        return (yield)
    try:
        engage(session.config)
        return (yield)
    except (pytest.UsageError, KeyboardInterrupt):
        _set_aside(session.config)
        raise


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Set the record of an earlier run aside if the session is interrupted before this one begins."""
    if exitstatus == pytest.ExitCode.INTERRUPTED and _is_requested(session.config):
        _set_aside(session.config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show subject and settings of the run."""
    return config.stash[_RUN].header() if _RUN in config.stash else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise a marked test by the cases of its property."""
    config, definition = metafunc.config, metafunc.definition
    if mark := definition.get_closest_marker(EXAMINES):
        name, strategy = mark.args
        with _input_errors_as(pytest.Collector.CollectError):
            items = _run_of(config).items(name, strategy)
        rows = [pytest.param(item.case, id=f"{item.id} {item.case.describe()}".strip()) for item in items]
        metafunc.parametrize("case" if "case" in metafunc.fixturenames else "layer", rows)


@pytest.fixture
def attncheck_layer() -> Callable[..., Any]:
    """Return `attncheck.inspect`, for tests such as ``attncheck_layer(make, width=64).require(mask="causal")``."""
    from attncheck.models.inspection import inspect

    return inspect


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Hold:
    """Return a function that examines the test's property on a case, and fails or skips the test by the results."""
    import msgspec

    from attncheck.diagnosis.messages import explain
    from attncheck.looks.item import Item
    from attncheck.records.text import most_informative

    run, name = _run_of(request.config), request.node.get_closest_marker(EXAMINES).args[0]
    sent = request.node.stash.setdefault(_PAYLOAD, parcel())

    def examine(case: Case) -> None:
        examined = request.config.stash[_CASES].examined(Item(name, case))
        results, sent["unusable"], sent["traceback"] = examined.results, examined.unusable, examined.traceback
        message = sent["unusable"] or explain(results, run.record, subject=run.subject.name)
        sent["results"] += msgspec.to_builtins(results)
        if message:
            pytest.fail("\n".join(filter(None, (message, sent["traceback"]))), pytrace=False)
        if not any(result.p_values for result in results):
            pytest.skip(most_informative(Counter(result.reason for result in results)))

    return examine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the results of a test item to its report."""
    report = yield
    if call.when == "call" and _PAYLOAD in item.stash:
        ship(report, item.stash[_PAYLOAD])
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the test items that remain after deselection."""
    if items := [test_item for item in session.items if (test_item := _item_of(item))]:
        run = _run_of(session.config)
        session.config.stash[_CASES] = cases.CaseResults(run, items)
        _plan(session.config, [item.id for item in items])


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Open the record if test items run in this process; at the end, examine pools and search for causes."""
    config = session.config
    if not (_is_worker(config) or config.option.collectonly):
        _open(config)
    done = yield
    if _REPORT in config.stash:
        with _workers(config) as workers:
            if not (session.shouldfail or session.shouldstop):
                _take_pools(config, workers)
            config.stash[_REPORT].diagnose(workers)
    return done


def _workers(config: pytest.Config) -> Workers:
    """Return as many processes as xdist has workers; without xdist, this process."""
    from attncheck._lib.executors import workers_of

    return workers_of(None, str(getattr(config.option, "numprocesses", None) or 0))


def _take_pools(config: pytest.Config, workers: Workers) -> None:
    """Examine the pools, in as many processes as the items, and report violated pools as failures."""
    import msgspec

    report = config.stash[_REPORT]
    violated, failed = report.pool(workers)
    for text in failed:
        _report_failure(config, "pools", parcel(unusable=text), text)
    for result in violated:
        _report_failure(config, f"pools[{result.id}]", parcel([msgspec.to_builtins(result)]), report.message(result))


def _report_failure(config: pytest.Config, name: str, sent: ReportPayload, message: str) -> None:
    """Report a failure that is found after the last test item, as if it were the failure of an item."""
    node, where = f"attncheck::{name}", ("attncheck", None, name)
    failed = pytest.TestReport(node, where, {}, "failed", message, "call")
    ship(failed, sent)
    # JUnit files are complete only with a teardown report.
    for report in (failed, pytest.TestReport(node, where, {}, "passed", None, "teardown")):
        config.hook.pytest_runtest_logreport(report=report)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all items of a case on one worker, unless the user has configured another scheduler."""
    shared_out = config.getoption("dist", None) == "load" and _RUN in config.stash
    return cases.scheduler(config, log) if shared_out else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Plan the items of a worker's collection, and open the record."""
    _plan(node.config, map(cases.item_id, ids))
    _open(node.config)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _option(config: pytest.Config, name: str) -> Any:
    return getattr(config.option, f"attncheck_{name}")


def _run_of(config: pytest.Config) -> Run:
    """Return the run of this process, created at first use."""
    if _RUN not in config.stash:
        from attncheck.runs.run import Run

        options = {name: _option(config, name) for name in _DEFAULTS}
        if options["subject"] is None:
            options["subject"] = os.environ.get("ATTNCHECK_SUBJECT") or None
        options["record"] = None if options["record"] is None else Path(options["record"])
        options |= {name: [part for part in (options[name] or "").split(",") if part] for name in ("only", "checks")}
        config.stash[_RUN] = Run.of(RunOptions(**options))
    return config.stash[_RUN]


def _item_of(item: pytest.Item) -> Item | None:
    """Return the property and the case that a test examines, as an item, or None if it examines none."""
    mark, called_with = item.get_closest_marker(EXAMINES), getattr(item, "callspec", None)
    if mark is None or called_with is None:
        return None
    from attncheck.looks.item import Item

    case = called_with.params.get("case", called_with.params.get("layer"))
    return Item(mark.args[0], case) if hasattr(case, "key") else None  # a property without cases is skipped


def _plan(config: pytest.Config, item_ids: Iterable[str]) -> None:
    """Plan items by their ids, if there are any."""
    if ids := list(filter(None, item_ids)):
        with _input_errors_as(pytest.UsageError):
            config.stash[_RUN] = _run_of(config).planning(ids)


def _open(config: pytest.Config) -> None:
    """Open the record once, in the reporting process."""
    if _RUN not in config.stash or _REPORT in config.stash:
        return
    if not config.stash[_RUN].item_ids:
        return
    from attncheck._lib.exit_codes import ExitCode
    from attncheck.runs.probe import refusal
    from attncheck.runs.reporting import RunReport

    run = config.stash[_RUN]
    with _workers(config) as workers:
        refused = refusal(run, workers)
    with _input_errors_as(pytest.UsageError):
        config.stash[_REPORT] = RunReport(run, refused=refused)
    reporter = Reporter(config.stash[_REPORT], config.option.attncheck_report)
    config.pluginmanager.register(reporter, "attncheck-reporter")
    if refused is not None:
        pytest.exit(f"{run.subject.name} cannot be examined", returncode=ExitCode.UNUSABLE)
