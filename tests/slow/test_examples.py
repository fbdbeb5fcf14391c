"""The example package installs beside attncheck, is found by its entry point, and passes its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "differential_attention"
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Return a function that runs Python where the package is installed, in a folder with its tests only."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")
    site = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(source)]
    subprocess.run(install, check=True, timeout=300)
    shutil.copytree(EXAMPLE / "tests", folder / "tests")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    environment.pop("PYTEST_ADDOPTS", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, *arguments]
        return subprocess.run(
            call, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=500
        )

    return run


def test_its_tests_pass(python: Python) -> None:
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout


def test_its_simulator_runs_in_another_process(python: Python) -> None:
    done = python(
        *("-m", "attncheck", "run", "--profile", "smoke", "--workers", "1", "--record", "record.jsonl"),
        *("--only", "differential", "--subject", "differential_attention:simulate"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
