"""Import rules between rooms (`tox run -e lint`), public names, and pages and settings that agree."""

from __future__ import annotations

import configparser
import importlib.metadata
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import attncheck
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


# README, .ci/run, tox.ini, pyproject.toml and the workflow agree ----------------------------------


README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

MAIN_JOB = "python -m pip install tox && tox run -e properties"
OWN_TESTS = "python -m pip install tox && tox run -e tests"


def tox_ini() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", encoding="utf-8")
    return parser


def tox_environments() -> set[str]:
    ini = tox_ini()
    named = {name.removeprefix("testenv:") for name in ini.sections() if name.startswith("testenv:")}
    return named | set(re.split(r"[,\s]+", ini["tox"]["env_list"].strip()))


def shell_lines(markdown: str) -> list[str]:
    blocks = re.findall(r"^```(?:sh|bash|shell)\s*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_pages_and_ci_name_the_environments_of_tox() -> None:
    commands = [MAIN_JOB, OWN_TESTS]
    for page in (README, (ROOT / "docs" / "index.md").read_text(encoding="utf-8")):
        assert [line for line in shell_lines(page) if "tox run" in line] == commands
    # Steps are shells that end the script where anything fails.
    assert {f"step '{command}'" for command in commands} | {"set -euo pipefail"} <= set(CI.splitlines())
    assert 'bash -euo pipefail -c "$1"' in CI
    for text in (README, CI, WORKFLOW):
        for names in re.findall(r"tox run -e (\w+(?:,\w+)*)", text):
            assert set(names.split(",")) <= tox_environments()


def test_workflow_runs_ci_on_every_supported_python() -> None:
    assert re.search(r"^\s*- run: \.ci/run$", WORKFLOW, re.MULTILINE)
    matrix = re.search(r"python-version: \[(.*)\]", WORKFLOW)
    assert matrix
    in_workflow = {version.strip().strip('"') for version in matrix[1].split(",")}
    in_tox = {f"3.{name[3:]}" for name in tox_environments() if re.fullmatch(r"py3\d+", name)}
    prefix = "Programming Language :: Python :: "
    classifiers = {entry.removeprefix(prefix) for entry in PROJECT["project"]["classifiers"]}
    in_classifiers = {entry for entry in classifiers if re.fullmatch(r"3\.\d+", entry)}
    assert in_workflow == in_tox == in_classifiers
    oldest = min(in_workflow, key=lambda version: int(version.split(".")[1]))
    assert PROJECT["project"]["requires-python"] == f">={oldest}"


def test_lowest_environment_installs_the_lower_bounds() -> None:
    pins = dict(line.split("==") for line in tox_ini()["testenv:lowest"]["deps"].split())
    for requirement in PROJECT["project"]["dependencies"]:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
        assert match, f"{requirement!r}: give a lower bound and nothing else"
        bound, pinned = (tuple(int(part) for part in text.split(".")) for text in (match[2], pins[match[1]]))
        assert pinned[: len(bound)] == bound, requirement
        assert not any(pinned[len(bound) :]), f"{requirement}: the pin is newer than the bound"


def test_installed_metadata() -> None:
    assert importlib.metadata.version("attncheck") == attncheck.__version__
    assert f"## [{attncheck.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (plugin,) = importlib.metadata.entry_points(group="pytest11", name="attncheck")
    assert plugin.value == "attncheck.pytest_plugin"
    assert attncheck.__file__ is not None
    assert (Path(attncheck.__file__).parent / "py.typed").is_file()
