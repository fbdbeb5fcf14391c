"""What tests of several folders share."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from attncheck.runs.run import Run

# pytest runs inside tests forget their first imports: import once here.
for module in ("attncheck.strategies", "attncheck.runs.summary", "attncheck.report.svg", "statsmodels.stats.multitest"):
    importlib.import_module(module)

# No deadlines on busy machines, and no influence of earlier failures.
settings.register_profile("tests", deadline=None, database=None)
settings.load_profile("tests")

Interrupt = Callable[[Sequence[str], Path], tuple[str, str]]


def pytest_collection_finish() -> None:
    """Exempt collected objects from garbage collection, which statsmodels' `multipletests` triggers at each call."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip diagnosis in runs of this process, except where a test needs it."""
    of = Run.of
    monkeypatch.setattr(Run, "of", lambda options: dataclasses.replace(of(options), explains=False))


@pytest.fixture
def no_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the fit of causes in runs of this process; violations are still diagnosed."""
    for module in ("check", "reporting"):
        monkeypatch.setattr(f"attncheck.runs.{module}.causes_of", lambda subject, results, seed: [])
    monkeypatch.setattr("attncheck.runs.samples.command.causes_of_samples", lambda samples, results, seed, laws: [])


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


@pytest.fixture
def interrupt(interruptible: None, wait_for: Callable[[Callable[[], bool]], None]) -> Interrupt:
    """Run Python in a folder until the file ``begun`` exists, press Ctrl-C, and return the output."""

    def said(arguments: Sequence[str], folder: Path) -> tuple[str, str]:
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                wait_for((folder / "begun").exists)
                os.killpg(process.pid, signal.SIGINT)
                return process.communicate(timeout=120)
            finally:
                process.kill()  # a hung one would be waited for

    return said
