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

# Runs of pytest inside a test forget what they import first: imported here, it is imported once, and whole.
for module in ("attncheck.strategies", "attncheck.runs.summary", "attncheck.report.svg", "statsmodels.stats.multitest"):
    importlib.import_module(module)

# A busy machine fails no deadline, and what failed in an earlier run decides nothing.
settings.register_profile("tests", deadline=None, database=None)
settings.load_profile("tests")

Interrupt = Callable[[Sequence[str], Path], tuple[str, str]]


def pytest_collection_finish() -> None:
    """Exempt collected objects from garbage collection, which `multipletests` of statsmodels triggers at each call."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in this process end with their verdicts: what is wrong is sought where a test looks at it."""
    of = Run.of
    monkeypatch.setattr(Run, "of", lambda options: dataclasses.replace(of(options), explains=False))


@pytest.fixture
def no_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in this process end without a fit of causes; violated results are diagnosed as ever."""
    for module in ("check", "reporting"):
        monkeypatch.setattr(f"attncheck.runs.{module}.causes_of", lambda subject, results, seed: [])
    monkeypatch.setattr("attncheck.runs.samples.command.causes_of_samples", lambda samples, results, seed, laws: [])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that a test starts be interrupted, also where a shell runs the tests in the background.

    A process that ignores SIGINT hands that on to those it starts; one that handles it does not.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupt(interruptible: None) -> Interrupt:
    """Run Python in a folder until there is a file ``begun``, press Ctrl-C, and return what was said."""

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
                deadline = time.monotonic() + 120
                while not (folder / "begun").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
                return process.communicate(timeout=120)
            finally:
                process.kill()  # one that hangs on would be waited for

    return said
