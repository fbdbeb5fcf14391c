"""`attncheck run` and `attncheck replay` in any folder, with errors."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.pytest_plugin.cases import item_id
from attncheck.records.schema import Closing, Line, Manifest, Result, read
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from tests.recorded import RIGHT, WRONG, Recorded, results_in, write_lines

from .conftest import refused

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

# Simulators of few layers, so that whole runs take seconds. The module name is unique, as imports persist in this
# process.
SUBJECTS = """
from attncheck.subject import collapsed

def one_number(layer):
    return layer.width == 1 and layer.seq_len == 1 or "too large for a test"

def small(layer, size, rng):
    return collapsed(layer, size, rng)

def shifted(layer, size, rng):
    drawn = dict(collapsed(layer, size, rng))
    drawn["outputs"] = drawn["outputs"] + 0.5
    return drawn

small.supports = shifted.supports = one_number
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder outside a clone, with simulators, and unrelated configuration and conftest."""
    place = tmp_path_factory.mktemp("elsewhere")
    (place / "cli_subjects.py").write_text(SUBJECTS, encoding="utf-8")
    (place / "conftest.py").write_text("raise RuntimeError('none of its business')\n", encoding="utf-8")
    (place / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n", encoding="utf-8")
    return place


SOME = ("draws", "independence")


class Done(NamedTuple):
    code: int
    out: str
    err: str
    record: Path


def examined(folder: Path, subject: str, *more: str, record: str = "", only: Sequence[str] = ("draws",)) -> Done:
    path = Path(record or folder / f"{subject}.jsonl")
    arguments = ["run", "--profile", "smoke", "--subject", f"cli_subjects:{subject}", "--record", str(path), *more]
    arguments += [part for name in only for part in ("--only", name)]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(RunReport, "diagnose", lambda report, workers: None)  # takes most of the time
        patch.setenv("PYTEST_ADDOPTS", "--no-such-option")
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        code = main(arguments)
    return Done(code, out.getvalue(), err.getvalue(), path)


@pytest.fixture(scope="module")
def small_run(folder: Path) -> Done:
    return examined(folder, "small", "--workers", "0")


@pytest.fixture(scope="module")
def shifted_run(folder: Path) -> Done:
    return examined(folder, "shifted", "--workers", "1", "--report", "shifted.html", only=SOME)


# run ----------------------------------------------------------------------------------------------


def test_run_works_in_any_folder_and_leaves_only_its_record(folder: Path, small_run: Done, shifted_run: Done) -> None:
    assert small_run.code == ExitCode.CONSISTENT, small_run.out + small_run.err
    assert quarters(small_run.err) == [25, 50, 75, 100]
    assert small_run.out.startswith(
        "attncheck: subject cli_subjects:small, seed 0, profile smoke, false-alarm budget 1e-06\n"
    )
    assert "CONSISTENT: cli_subjects:small" in small_run.out
    assert isinstance(list(read(small_run.record))[-1], Closing)
    known = {"cli_subjects.py", "conftest.py", "pytest.ini", "small.jsonl", "shifted.jsonl", "shifted.html"}
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    # Python's cache of the folder's module.
    notes = {name for name in left if name == "__pycache__" or name.startswith("__pycache__/cli_subjects.")}
    assert left - notes == known


def test_run_and_pytest_have_the_same_items(pytester: pytest.Pytester) -> None:
    options = ["--collect-only", "-q", "--attncheck-profile", "smoke", "-p", "no:cacheprovider"]
    collected = pytester.runpytest_inprocess(str(ROOT / "properties"), *options).outlines
    ids = {item_id(line) for line in collected if "::" in line}
    assert ids == {item.id for item in Run.of(RunOptions(profile="smoke")).all_items}


def without_time(line: Line) -> Line:
    if isinstance(line, Manifest):
        return msgspec.structs.replace(line, started="", planned=sorted(line.planned, key=lambda each: each.id))
    untimed = msgspec.structs.replace(line, seconds=0.0)
    return msgspec.structs.replace(untimed, seal="") if isinstance(untimed, Closing) else untimed


def test_run_and_pytest_write_the_same_record(
    folder: Path, shifted_run: Done, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a worker and none; pytest says what is wrong, and shows no code."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr(RunReport, "diagnose", lambda report, workers: None)
    monkeypatch.syspath_prepend(str(folder))
    options = ["--attncheck-profile", "smoke", "--attncheck-subject", "cli_subjects:shifted"]
    options += ["--attncheck-record", "record.jsonl", "-n", "0", "-rf", "-p", "no:cacheprovider"]
    tests = [str(ROOT / "properties" / f"test_{name}.py") for name in SOME]
    done = pytester.runpytest_inprocess("-q", *tests, *options)
    text = "\n".join(done.outlines)
    assert done.ret == pytest.ExitCode.TESTS_FAILED, text
    for words in ("VIOLATED: Draws are", "VIOLATED: cli_subjects:shifted", "observed: mean of the outputs 0."):
        assert words in text
    assert re.search(r"replay:   attncheck replay record\.jsonl \S+ --trust cli_subjects", text)
    assert not re.search("Traceback|Flaky", text)

    def told(path: Path) -> list[bytes]:
        return sorted(msgspec.json.encode(without_time(line), order="sorted") for line in read(path))

    assert told(pytester.path / "record.jsonl") == told(shifted_run.record)
    verdicts = {line.verdict for line in read(shifted_run.record) if isinstance(line, Result)}
    assert verdicts == {"consistent", "violated", "not examined"}


def test_run_with_a_fault_says_what_is_wrong(shifted_run: Done) -> None:
    assert shifted_run.code == ExitCode.VIOLATED
    assert quarters(shifted_run.err) == [25, 50, 75, 100]
    assert shifted_run.err.endswith(" violated\nseeking the cause of the violations\n")
    assert "VIOLATED: " in shifted_run.out
    assert re.search(r"observed: mean of the outputs 0\.(4|5)\S* \[", shifted_run.out)
    assert re.search(
        rf"replay:   attncheck replay {shifted_run.record} \S+ --trust cli_subjects$", shifted_run.out, flags=re.M
    )


def test_a_file_that_is_no_record_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    """tests/records tests what else cannot be written."""
    source = tmp_path / "source.py"
    source.write_text("somebody's source\n")
    done = examined(folder, "small", "--workers", "0", record=str(source))
    assert done.code == ExitCode.UNUSABLE
    assert "is not a record" in refused(done.err)
    assert source.read_text() == "somebody's source\n"


def test_only_what_is_named_is_examined(folder: Path, tmp_path: Path) -> None:
    done = examined(folder, "small", "--workers", "0", "--only", "draws", record=str(tmp_path / "only.jsonl"), only=())
    assert done.code == ExitCode.CONSISTENT, done.out + done.err
    assert {result.property for result in results_in(done.record)} == {"draws"}
    for name, message in (
        ("drawn", "only='drawn': is not known; did you mean 'draws'?"),
        ("netsor", "only='netsor': needs programs, which cli_subjects:small does not simulate"),
    ):
        done = examined(folder, "small", "--only", name, record=str(tmp_path / "none.jsonl"), only=())
        assert message in refused(done.err)


def quarters(errors: str) -> list[int]:
    """Return the shares reported without a terminal."""
    return [int(number) for number in re.findall(r"^(\d+)% done after ", errors, re.MULTILINE)]


# replay -------------------------------------------------------------------------------------------


def a_result(record: Path, verdict: str) -> Result:
    return next(result for result in results_in(record) if result.verdict == verdict)


@pytest.mark.parametrize("verdict", ["consistent", "violated", "not examined"])
def test_replay_repeats_a_result_to_the_digit(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], verdict: str
) -> None:
    result = a_result(recorded.wrong, verdict)
    assert main(["replay", str(recorded.wrong), result.id]) == ExitCode.of(verdict)
    before, repeated = (line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()[1:3])
    assert before == repeated
    assert before.startswith(verdict)
    assert all(f"{p:.17g}" in before for p in result.p_values)


def test_replay_with_a_mended_simulator(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", str(recorded.wrong), a_result(recorded.wrong, "violated").id, "--subject", RIGHT]
    assert main(arguments) == ExitCode.CONSISTENT
    assert f"The digits differ: the subject was {WRONG}, now {RIGHT}." in capsys.readouterr().out


def test_replay_says_which_versions_and_arithmetic_differ(
    tmp_path: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, result = next(read(recorded.right)), a_result(recorded.right, "consistent")
    changes: dict[str, dict[str, str]] = {
        "versions": {**manifest.versions, "numpy": "1.0"},
        "machine": {**manifest.machine, "arithmetic": "openblas 0.3 Haswell", "cores": "1000"},
    }
    edited = [msgspec.structs.replace(manifest, **changes), msgspec.structs.replace(result, p_values=[0.25])]
    record = write_lines(tmp_path / "old.jsonl", edited)
    assert main(["replay", str(record), result.id]) == ExitCode.CONSISTENT
    text = capsys.readouterr().out
    assert "The digits differ: numpy was 1.0, now " in text
    # BLAS kernels depend on the processor, and affect rounding; the number of cores does not.
    assert "; arithmetic was openblas 0.3 Haswell, now openblas" in text
    assert not re.search(r"\bcores\b", text)


def test_replay_of_what_is_not_there_suggests_what_is(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    result = a_result(recorded.right, "consistent")
    assert main(["replay", str(recorded.right), result.id[:-1]]) == ExitCode.UNUSABLE
    assert result.id in refused(capsys.readouterr().err)
