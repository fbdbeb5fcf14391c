"""`attncheck init` writes files that run unchanged, and loses nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main

pytest_plugins = ["pytester"]

FILES = {
    **{name: ["simulator.py", "test_simulator.py", ".github/workflows/attncheck.yml"] for name in ("numpy", "program")},
    **{name: ["layer.py", "test_layer.py", ".github/workflows/attncheck.yml"] for name in ("torch", "flax", "keras")},
}


#: Options of the kinds of starters.
OPTIONS = {kind: ["--program"] if kind == "program" else ["--framework", kind] for kind in FILES}


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("framework", FILES)
def test_what_is_written_is_listed(framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new"), *OPTIONS[framework]]) == ExitCode.CONSISTENT
    said = capsys.readouterr().out.splitlines()
    assert files_in(tmp_path / "new") == sorted(FILES[framework])
    assert said[: len(FILES[framework])] == [f"wrote {tmp_path / 'new' / name}" for name in FILES[framework]]
    assert said[3:5] == ["next:", f"  cd {tmp_path / 'new'}"]
    plain = framework in ("numpy", "program")
    installed = plain or importlib.util.find_spec(framework) is not None
    assert said[5].startswith(f"  python -m pip install {framework}") != installed
    assert f"  python -m pytest {FILES[framework][1]}" in said[5:7]
    workflow = (tmp_path / "new/.github/workflows/attncheck.yml").read_text(encoding="utf-8")
    extra = "" if plain else f"[{framework}]"
    assert f'- run: python -m pip install "attncheck{extra} @ git+https://github.com/OWNER/attncheck"\n' in workflow
    assert "<" not in workflow
    assert "before you push: replace https://github.com/OWNER/attncheck" in "\n".join(said)


@pytest.mark.parametrize(("framework", "there"), [("numpy", [0]), ("torch", [1]), ("flax", [2]), ("numpy", [0, 2])])
def test_no_file_is_overwritten(
    framework: str, there: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [FILES[framework][number] for number in there]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine", encoding="utf-8")
    assert main(["init", str(tmp_path), "--framework", framework]) == ExitCode.UNUSABLE
    said = capsys.readouterr()
    assert said.out == ""
    assert f"already has {', '.join(names)}; move it away, or choose another folder" in said.err
    assert files_in(tmp_path) == sorted(names)
    assert all((tmp_path / name).read_text(encoding="utf-8") == "mine" for name in names)


def test_a_link_to_nowhere_is_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "simulator.py").symlink_to(tmp_path / "elsewhere.py")
    assert main(["init", str(tmp_path)]) == ExitCode.UNUSABLE
    assert not (tmp_path / "elsewhere.py").exists()


@pytest.fixture
def _no_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget simulators of this name, here and for the tests that follow."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "simulator", sys)
    del sys.modules["simulator"]


@pytest.mark.usefixtures("_no_simulator")
def test_the_starter_of_a_program_is_right_and_its_test_sees_scores_over_n(pytester: pytest.Pytester) -> None:
    assert main(["init", "--program"]) == ExitCode.CONSISTENT
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    simulator = pytester.path / "simulator.py"
    text = simulator.read_text(encoding="utf-8")
    assert text.count("/ np.sqrt(width)") == 1
    simulator.write_text(text.replace("/ np.sqrt(width)", "/ width"), encoding="utf-8")
    wrong = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    wrong.assert_outcomes(failed=1)
    wrong.stdout.fnmatch_lines(["*cause: *p = <q, k> / sqrt(n) is 0.25 times the declared line (n^-0.5)"])


@pytest.mark.parametrize("framework", ["torch", "flax"])
def test_programs_have_no_framework(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--program", "--framework", framework]) == ExitCode.UNUSABLE
    assert f"framework='{framework}': is for layers; leave it out" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_simulator")
def test_the_files_work_unchanged(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    """In the current folder; the test passes. tests/slow runs the workflow."""
    assert main(["init"]) == ExitCode.CONSISTENT
    assert files_in(pytester.path) == sorted(FILES["numpy"])
    assert capsys.readouterr().out.splitlines()[3:5] == ["next:", "  python -m pytest test_simulator.py"]
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
