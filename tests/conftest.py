"""What tests of several folders share."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from tests.recorded import RIGHT, WRONG, Recorded, examine

# pytest runs inside tests forget their first imports: import once here.
for module in (
    "attncheck._lib.processes",
    "attncheck.report.svg",
    "attncheck.runs.summary",
    "attncheck.strategies",
    "statsmodels.stats.multitest",
):
    importlib.import_module(module)

# No deadlines on busy machines, no influence of earlier failures, and the same examples each time.
settings.register_profile("tests", deadline=None, database=None, derandomize=True)
settings.load_profile("tests")

# Benchmarks are not in the package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
# Keras runs on torch, where nothing else is asked.
os.environ.setdefault("KERAS_BACKEND", "torch")

#: Environment variable: "all" runs every item of a sampled test; by default, one in three, or one in n of `sampled(n)`.
SAMPLE, THIRDS = "ATTNCHECK_TESTS", 3


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"sampled(n=3): one in n items, the same each time; all with {SAMPLE}=all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave items of sampled tests out, but at least one of each, and none that is asked for by name."""
    if os.environ.get(SAMPLE) == "all":
        return
    named = tuple(argument for argument in config.args if "::" in argument)
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.nodeid.startswith(named):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for of_test in tests.values() for item in _part(of_test)}
    left_out = {item for of_test in tests.values() for item in of_test} - kept
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _part(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return about one in n of a test's items, chosen by a hash of their names."""
    marker = items[0].get_closest_marker("sampled")
    parts = marker.args[0] if marker is not None and marker.args else THIRDS
    return [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == 0] or items[:1]


def pytest_collection_finish() -> None:
    """Exempt collected objects from garbage collection, which statsmodels' `multipletests` triggers at each call."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return the records of a right, a wrong and an incomplete run."""
    folder = tmp_path_factory.mktemp("recorded")
    examine(folder / "right.jsonl", RIGHT, ("scores", "conditional"))
    examine(folder / "wrong.jsonl", WRONG)
    examine(folder / "incomplete.jsonl", RIGHT, ("scores", "conditional"), first=1)
    return Recorded(*(folder / f"{name}.jsonl" for name in Recorded._fields))


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip diagnosis in runs of this process, except where a test needs it."""
    of = Run.of
    monkeypatch.setattr(Run, "of", lambda options: dataclasses.replace(of(options), explains=False))


@pytest.fixture
def no_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the fit of causes in runs of this process; violations are still diagnosed."""
    monkeypatch.setattr("attncheck.runs.check.explained", lambda subject, results, seed: ())
    monkeypatch.setattr(RunReport, "diagnose", lambda report, workers: None)
    monkeypatch.setattr("attncheck.runs.samples.command.explanations", lambda violations: ())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let child processes be interrupted, even if a shell runs the tests in the background.

    Ignored SIGINT is inherited; handlers are not.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds; fail after two minutes."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120.0
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    return wait
