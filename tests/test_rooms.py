"""Import rules between rooms (`tox run -e lint`), and public names."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck import api

ROOT = Path(__file__).resolve().parents[1]
WRONG = {
    "Arrows between rooms run one way": ("_lib/errors.py", "from attncheck.layers.attention import AttentionLayer"),
    "No circle between modules or folders": ("evidence/looks.py", "import attncheck.evidence.ledger"),
    "Nothing inside imports the front door": ("gate/judge.py", "import attncheck"),
}


def linted(folder: Path) -> tuple[int, str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    return run.returncode, run.stdout + run.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rooms")
    shutil.copytree(ROOT / "attncheck", folder / "attncheck", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_wrong_imports_are_rejected_lazy_ones_too(copy: Path) -> None:
    code, said = linted(copy)
    assert code == 0, said
    assert said.count("KEPT") == len(WRONG)
    for file, line in WRONG.values():
        path = copy / "attncheck" / file
        path.write_text(f"{path.read_text('utf-8')}\n\ndef _wrong() -> None:\n    {line}\n", "utf-8")
    (copy / "attncheck" / "newcomer.py").write_text('"""A room that no layer names."""\n', "utf-8")
    code, said = linted(copy)
    assert code == 1
    for contract in WRONG:
        assert f"{contract} BROKEN" in said
    assert "newcomer" in said


PUBLIC = (ROOT / "docs" / "api.md").read_text("utf-8")
DOORS = re.findall(r"automodule:: (\S+)", PUBLIC)


def test_what_is_public_is_what_the_page_lists() -> None:
    listed = re.findall(r"auto(?:class|function):: attncheck\.(\w+)$", PUBLIC, flags=re.M)
    assert sorted(listed) == sorted([*api.__all__, "examines"])
    assert set(DOORS) >= {"attncheck.subject", "attncheck.strategies", "attncheck.faults", "attncheck.pytest_plugin"}


@pytest.mark.parametrize("name", ["attncheck.api", *DOORS])
def test_public_names_are_there_and_say_what_they_are(name: str) -> None:
    door = importlib.import_module(name)
    assert len(set(door.__all__)) == len(door.__all__) >= 3
    for public in door.__all__:
        found = getattr(door, public)
        assert (not inspect.isroutine(found) and not inspect.isclass(found)) or found.__doc__, public
