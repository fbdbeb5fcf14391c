"""pytest plugin: options, configurations as test items, results from any number of workers, the summary.

A test marked with `examines` becomes one item per layer. Each item ships its results with its report, in
built-in types, so that a crashed worker loses its own item only; the process that reports assembles them.
This module is imported whenever pytest starts, so it imports the rest of attncheck when needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from attncheck.attention import AttentionLayer
    from attncheck.run import Run, RunReport

DEFAULT_RECORD = "reports/output/record.jsonl"
_KEY = "attncheck"
_MARK = "attncheck_examines"
_DRAWN = "attncheck_drawn"
_RUN = pytest.StashKey["Run"]()
_REPORT = pytest.StashKey["RunReport"]()

Hold = Callable[["AttentionLayer"], None]


def examines(name: str, strategy: Any) -> pytest.MarkDecorator:
    """Mark a test as examining a property on anchors and on layers drawn from a hypothesis strategy.

    The test takes the arguments ``layer`` and ``hold`` and calls ``hold(layer)``.

    Parameters
    ----------
    name : str
        A property of `attncheck.checks.registry.PROPERTIES`.
    strategy : hypothesis strategy of AttentionLayer
    """
    return getattr(pytest.mark, _MARK)(name, strategy)  # type: ignore[no-any-return]


def drawn(strategy: Any) -> pytest.MarkDecorator:
    """Mark a test of its own that runs on layers drawn from a strategy, the same for the same run seed.

    The test takes the argument ``layer``, and ``run_seed`` if it draws random numbers; it has no results in
    the ledger.
    """
    return getattr(pytest.mark, _DRAWN)(strategy)  # type: ignore[no-any-return]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ``--attncheck-…`` options."""
    group = parser.getgroup("attncheck", "attncheck: does this attention simulator behave as the theorem says?")
    group.addoption("--attncheck-subject", metavar="MODULE:CALLABLE", help="simulator to examine (ATTNCHECK_SUBJECT)")
    group.addoption("--attncheck-seed", default="0", metavar="N|random", help="run seed: same seed, same digits")
    group.addoption("--attncheck-profile", default="default", metavar="NAME", help="smoke, default or thorough")
    group.addoption("--attncheck-false-alarm", default="1e-6", metavar="B", help="false-alarm budget of the run")
    group.addoption("--attncheck-draws", metavar="N", help="thorough: draws that the whole run may take")
    group.addoption("--attncheck-record", default=DEFAULT_RECORD, metavar="PATH", help="where the record goes")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark; draw the seed once where it is to be random."""
    config.addinivalue_line("markers", f"{_MARK}(name, strategy): examines a property on many layers")
    config.addinivalue_line("markers", f"{_DRAWN}(strategy): runs on layers drawn from a strategy")
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.option.attncheck_seed = worker["attncheck_seed"]
    elif config.option.attncheck_seed == "random":
        config.option.attncheck_seed = str(int.from_bytes(os.urandom(4), "big"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker the seed."""
    node.workerinput["attncheck_seed"] = node.config.option.attncheck_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """Echo what is examined and how, where the run is one of attncheck's."""
    named = config.option.attncheck_subject or os.environ.get("ATTNCHECK_SUBJECT")
    if not named and not any("properties" in Path(arg.partition("::")[0]).parts for arg in config.args):
        return None
    return _run_of(config).header()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per layer of a marked test."""
    if "layer" not in metafunc.fixturenames:
        return
    if mark := metafunc.definition.get_closest_marker(_MARK):
        units = _run_of(metafunc.config).units(*mark.args)
        metafunc.parametrize("layer", [u.layer for u in units], ids=[f"{u.id} {u.layer.describe()}" for u in units])
    elif mark := metafunc.definition.get_closest_marker(_DRAWN):
        layers = _run_of(metafunc.config).layers(mark.args[0], metafunc.definition.name)
        metafunc.parametrize("layer", layers, ids=[layer.describe() for layer in layers])


@pytest.fixture
def run_seed(request: pytest.FixtureRequest) -> int:
    """Return the run seed, to key random streams with."""
    return _run_of(request.config).seed


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Hold:
    """Return the function that examines the property on a layer and fails the test if it is violated."""
    run = _run_of(request.config)
    name = request.node.get_closest_marker(_MARK).args[0]

    def examine(layer: AttentionLayer) -> None:
        results, message = run.examine(name, layer)
        request.node.user_properties.append((_KEY, results))
        if message:
            pytest.fail(message, pytrace=False)

    return examine


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fix the level of a look by what is left after deselection."""
    ids = _unit_ids(item.nodeid for item in items)
    if ids:
        config.stash[_RUN] = _run_of(config).settled(ids)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Learn the plan from what a worker collected."""
    found = _unit_ids(ids)
    if found:
        node.config.stash[_RUN] = _run_of(node.config).settled(found)
        _report_of(node.config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Open the record where this process both collects and reports."""
    config = session.config
    if not hasattr(config, "workerinput") and _RUN in config.stash and config.stash[_RUN].unit_ids:
        _report_of(config)


class _Reporter:
    """Takes results out of reports as they come in, and has the last word."""

    def __init__(self, config: pytest.Config, report: RunReport) -> None:
        self.config = config
        self.report = report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the results of a finished item."""
        if report.when == "call":
            for key, value in report.user_properties:
                if key == _KEY:
                    self.report.take(cast(Any, value))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Conclude the run; what is not consistent is not a pass."""
        if not self.report.finish() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the verdict first, then the table."""
        terminalreporter.section("attncheck")
        terminalreporter.write_line(self.report.summary(terminalreporter.hasmarkup))


def _run_of(config: pytest.Config) -> Run:
    """Return the run of this process, made at its first use."""
    if _RUN not in config.stash:
        from attncheck.errors import InputError
        from attncheck.run import Run

        option = config.option
        try:
            config.stash[_RUN] = Run.of(
                subject=option.attncheck_subject or os.environ.get("ATTNCHECK_SUBJECT"),
                seed=option.attncheck_seed,
                profile=option.attncheck_profile,
                false_alarm=option.attncheck_false_alarm,
                draws=option.attncheck_draws,
                record=Path(option.attncheck_record),
            )
        except InputError as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[_RUN]


def _report_of(config: pytest.Config) -> RunReport:
    """Return the report that the run is written to, opened at its first use."""
    if _REPORT not in config.stash:
        from attncheck.errors import InputError

        try:
            report = _run_of(config).open_report()
        except InputError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[_REPORT] = report
        config.pluginmanager.register(_Reporter(config, report), "attncheck-reporter")
    return config.stash[_REPORT]


def _unit_ids(node_ids: Iterable[str]) -> list[str]:
    """Return the unit ids in the brackets of node ids, ``test_scores[scores@0123456789ab n=16 …]``."""
    bracketed = (node_id.partition("[")[2].partition(" ")[0] for node_id in node_ids)
    return [unit for unit in bracketed if "@" in unit]
