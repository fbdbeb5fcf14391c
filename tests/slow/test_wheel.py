"""The first hour with only the wheel: its contents run in an empty project."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
Shell = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (built,) = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "site")
    return folder / "site"


def run_in(folder: Path, paths: str, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in a folder, with modules of `paths` first."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": paths, "PATH": programs, "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=500
    )


@pytest.fixture
def shell(wheel: Path, tmp_path: Path) -> Shell:
    """Return a function that runs a line in an empty project with the wheel's attncheck."""
    return functools.partial(run_in, tmp_path, str(wheel))


def digest(said: str) -> str:
    return said.partition("Digest of all digits: ")[2].partition("\n")[0]


@pytest.mark.parametrize(
    ("folder", "shipped"),
    {
        "properties": "properties",
        "reports/templates": "_reports/templates",
        "attncheck/commands/start": "commands/start",
    }.items(),
)
def test_the_wheel_has_what_a_clone_has(folder: str, shipped: str, wheel: Path) -> None:
    files = [path for path in (ROOT / folder).rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    assert files
    for path in files:
        copy = wheel / "attncheck" / shipped / path.relative_to(ROOT / folder)
        assert copy.read_bytes() == path.read_bytes()


def test_what_init_writes_runs_as_it_is_and_so_do_the_properties(wheel: Path, shell: Shell, tmp_path: Path) -> None:
    """Each line of the workflow verbatim; then pytest, beside a user's test, with the same digest."""
    assert shell("attncheck init").returncode == ExitCode.CONSISTENT
    workflow = (tmp_path / ".github/workflows/attncheck.yml").read_text(encoding="utf-8")
    install, *lines = re.findall(r"^ *- run: (.*)$", workflow, re.MULTILINE)
    assert install == 'python -m pip install "attncheck @ git+https://github.com/OWNER/attncheck"'
    done = [shell(line) for line in lines]
    assert [each.returncode for each in done] == [0, 0], "\n".join(each.stdout + each.stderr for each in done)
    assert "CONSISTENT: simulator:simulate" in done[1].stdout
    assert (tmp_path / "report.html").exists()

    own = f"""
import attncheck

def test_own(attncheck_layer):
    assert attncheck_layer.__name__ == "inspect"
    assert attncheck.__file__.startswith({str(wheel)!r})
"""
    (tmp_path / "test_own.py").write_text(own, encoding="utf-8")
    options = "--attncheck-subject simulator:simulate --attncheck-profile smoke"
    tested = shell(f"pytest test_own.py --pyargs attncheck.properties {options}")
    assert tested.returncode == pytest.ExitCode.OK, tested.stdout + tested.stderr
    assert len(digest(tested.stdout)) == 16
    assert digest(tested.stdout) == digest(done[1].stdout)


# The example package is installed beside attncheck and found by its entry point -------------------


EXAMPLE = ROOT / "examples" / "differential_attention"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return a function that runs a line where the package is installed, in a folder with its tests only."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")
    site = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(source)]
    subprocess.run(install, check=True, timeout=300)
    shutil.copytree(EXAMPLE / "tests", folder / "tests")
    return functools.partial(run_in, folder, os.pathsep.join([str(site), str(ROOT)]))


def test_its_tests_pass(example: Shell) -> None:
    done = example("pytest -q -p no:cacheprovider tests")
    assert done.returncode == 0, done.stdout


def test_its_simulator_runs_in_another_process(example: Shell) -> None:
    options = "--profile smoke --workers 1 --record record.jsonl --only differential"
    done = example(f"attncheck run {options} --subject differential_attention:simulate")
    assert done.returncode == 0, done.stdout + done.stderr
