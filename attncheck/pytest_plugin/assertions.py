"""The fixture `evidence`: assertions about random draws, with one budget per session."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attncheck.evidence.assertions import Evidence

_FIXTURE, _RESULT = "evidence", "evidence"
_COUNT: pytest.StashKey[frozenset[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the false-alarm budget as an option and as an ini value."""
    text = "chance that any assertion of the fixture evidence fails although all are true (default: 1e-6)"
    parser.getgroup("attncheck").addoption("--evidence-alpha", metavar="ALPHA", type=float, help=text)
    parser.addini("evidence_alpha", text, default="1e-6")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count the tests that share the budget, before any of them is deselected."""
    config.stash[_COUNT] = frozenset(item.nodeid for item in items if _FIXTURE in getattr(item, "fixturenames", ()))
    if config.stash[_COUNT]:
        _alpha(config)  # refuses an invalid budget before any test runs


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> Generator[Evidence, None, None]:
    """Yield an `Evidence` object; all tests that use one have an equal share of the session's false-alarm budget."""
    from attncheck.evidence.assertions import Evidence

    config, name = request.config, request.node.nodeid
    if name not in config.stash[_COUNT]:
        raise pytest.UsageError(f"{name}: name the fixture evidence among the test's arguments, so that it is counted")
    alpha, seed = _alpha(config) / len(config.stash[_COUNT]), config.option.attncheck_seed
    replay = f"pytest {shlex.quote(name)} --attncheck-seed={seed} --evidence-alpha={alpha!r}"
    try:
        instance = Evidence(int(seed), alpha, name=name, replay=replay)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    yield instance
    request.node.user_properties.append((_RESULT, [assertion.violated for assertion in instance.assertions]))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the number of assertions, the violated tests and the budget."""
    results = {
        report.nodeid: dict(report.user_properties)[_RESULT]
        for reports in terminalreporter.stats.values()
        for report in reports
        if _RESULT in dict(getattr(report, "user_properties", ()))
    }
    if not results:
        return
    from attncheck._lib.text import counted

    count = sum(map(len, results.values()))
    violated = [name for name, flags in results.items() if any(flags)]
    verdict = f"violated in {', '.join(violated)}" if violated else "none violated"
    often = f"chance of any false alarm at most {_alpha(config):.2g}"
    terminalreporter.write_line(f"evidence: {counted(count, 'assertion')}, {verdict} ({often})")


def _alpha(config: pytest.Config) -> float:
    option = config.getoption("evidence_alpha")
    text = config.getini("evidence_alpha") if option is None else option
    from attncheck._lib.errors import InputError
    from attncheck.evidence.family import inside_unit

    try:
        return inside_unit("evidence_alpha", float(text), "pass a chance such as 1e-6")
    except InputError as error:
        raise pytest.UsageError(str(error)) from None
    except ValueError:
        raise pytest.UsageError(f"evidence_alpha={text}: is not a number; pass a chance such as 1e-6") from None
