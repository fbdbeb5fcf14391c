"""`attncheck run` and `attncheck replay` in any folder, with errors."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.pytest_plugin.cases import item_id
from attncheck.records.schema import Closing, Line, Manifest, Result, read
from attncheck.records.writer import Writer
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run

from .conftest import refused

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

# Simulators of few layers, so that whole runs take seconds. The module name is unique, as imports persist in this
# process.
SUBJECTS = """
import os, time
from attncheck.subject import collapsed

def one_number(layer):
    return layer.width == 1 and layer.seq_len == 1 or "too large for a test"

def small(layer, size, rng):
    return collapsed(layer, size, rng)

def shifted(layer, size, rng):
    drawn = dict(collapsed(layer, size, rng))
    drawn["outputs"] = drawn["outputs"] + 0.5
    return drawn

def killing(layer, size, rng):
    if size > 4:  # more than a probe draws
        os._exit(3)
    return collapsed(layer, size, rng)

def broken(layer, size, rng):
    raise ValueError("not in\\nthe mood")

def slow(layer, size, rng):
    time.sleep(1)
    return collapsed(layer, size, rng)

for function in (small, shifted, killing, broken):
    function.supports = one_number
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


def test_run_renders_a_report(folder: Path, shifted_run: Done) -> None:
    assert "\nReport: shifted.html\n" in shifted_run.out
    page = (folder / "shifted.html").read_text(encoding="utf-8")
    assert "cli_subjects:shifted" in page
    assert "violated" in page.lower()


def without_time(line: Line) -> Line:
    if isinstance(line, Manifest):
        return msgspec.structs.replace(line, started="", planned=sorted(line.planned, key=lambda each: each.id))
    return msgspec.structs.replace(line, seconds=0.0)


def test_run_and_pytest_write_the_same_record(
    folder: Path, shifted_run: Done, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a worker and none."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr(RunReport, "diagnose", lambda report, workers: None)
    monkeypatch.syspath_prepend(str(folder))
    options = ["--attncheck-profile", "smoke", "--attncheck-subject", "cli_subjects:shifted"]
    options += ["--attncheck-record", "record.jsonl", "-n", "0", "-p", "no:cacheprovider"]
    tests = [str(ROOT / "properties" / f"test_{name}.py") for name in SOME]
    done = pytester.runpytest_inprocess("-q", *tests, *options)
    assert done.ret == pytest.ExitCode.TESTS_FAILED, "\n".join(done.outlines)

    def told(path: Path) -> list[bytes]:
        return sorted(msgspec.json.encode(without_time(line), order="sorted") for line in read(path))

    assert told(pytester.path / "record.jsonl") == told(shifted_run.record)
    verdicts = {line.verdict for line in read(shifted_run.record) if isinstance(line, Result)}
    assert verdicts == {"consistent", "violated", "not examined"}


def test_run_with_a_fault_says_what_is_wrong(shifted_run: Done) -> None:
    assert shifted_run.code == ExitCode.VIOLATED
    assert quarters(shifted_run.err) == [25, 50, 75, 100]
    assert shifted_run.err.endswith(" violated\n")
    assert "VIOLATED: " in shifted_run.out
    assert re.search(r"observed: mean of the outputs 0\.(4|5)\S* \[", shifted_run.out)
    assert re.search(
        rf"replay:   attncheck replay {shifted_run.record} \S+ --trust cli_subjects$", shifted_run.out, flags=re.M
    )


def closing_of(record: Path) -> Closing:
    *_, closing = read(record)
    assert isinstance(closing, Closing)
    return closing


@pytest.mark.parametrize("option", [[], ["--executor", "dask:tcp://127.0.0.1:9"]])
def test_what_is_there_stays(folder: Path, small_run: Done, tmp_path: Path, option: list[str]) -> None:
    """Files that are no records are not overwritten, nor are records before an executor exists."""
    kept = tmp_path / "kept"
    kept.write_bytes(small_run.record.read_bytes() if option else b"somebody's source\n")
    before = kept.read_bytes()
    workers = ["--workers", "1" if option else "0"]
    done = examined(folder, "small", *workers, *option, record=str(kept))
    assert done.code == ExitCode.UNUSABLE
    said = "executor=" if option else "is not a record"
    assert said in refused(done.err)
    assert kept.read_bytes() == before


def test_only_what_is_named_is_examined(folder: Path, tmp_path: Path) -> None:
    done = examined(folder, "small", "--workers", "0", "--only", "draws", record=str(tmp_path / "only.jsonl"), only=())
    assert done.code == ExitCode.CONSISTENT, done.out + done.err
    lines = list(read(done.record))
    assert {line.property for line in lines if isinstance(line, Result)} == {"draws"}
    done = examined(folder, "small", "--only", "drawn", record=str(tmp_path / "none.jsonl"), only=())
    assert "only='drawn': is not known; use one of " in refused(done.err)
    done = examined(folder, "small", "--only", "netsor", record=str(tmp_path / "none.jsonl"), only=())
    assert "only='netsor': needs programs, which cli_subjects:small does not simulate" in refused(done.err)


def quarters(errors: str) -> list[int]:
    """Return the shares reported without a terminal."""
    return [int(line.partition("% done after ")[0]) for line in errors.splitlines()]


def test_run_of_a_simulator_that_fails(folder: Path, tmp_path: Path) -> None:
    done = examined(folder, "broken", "--workers", "0", record=str(tmp_path / "broken.jsonl"))
    assert done.code == ExitCode.UNUSABLE, done.out + done.err
    first = done.out.splitlines()[1]
    assert first.startswith("ERROR: subject=cli_subjects:broken: raised ValueError: not in the mood (cli_subjects.py:")
    assert first.endswith("Nothing was examined.")
    assert "missing" not in done.out
    assert done.out.count("Traceback (most recent call last):") == 1
    assert "attncheck/" not in done.out.partition("Traceback")[2]
    assert closing_of(done.record).verdict == "incomplete"


def test_run_of_a_simulator_that_ends_its_process(folder: Path, tmp_path: Path) -> None:
    """Items that kill twice are incomplete, by name."""
    done = examined(folder, "killing", "--workers", "1", record=str(tmp_path / "killing.jsonl"))
    assert done.code == ExitCode.INCOMPLETE, done.out + done.err
    said = r"^  failed:   subject=cli_subjects:killing: on n=1 .*: its process died"
    assert len(re.findall(said, done.out, flags=re.MULTILINE)) == 1, done.out
    assert closing_of(done.record).verdict == "incomplete"
    manifest, *results = [line for line in read(done.record) if isinstance(line, Manifest | Result)]
    assert isinstance(manifest, Manifest)
    missing = {each.item for each in manifest.planned} - {each.item for each in results if isinstance(each, Result)}
    assert len(missing) == 1


def test_run_whose_record_cannot_be_written(folder: Path) -> None:
    done = examined(folder, "small", "--workers", "0", record="/dev/full")
    assert done.code == ExitCode.UNUSABLE
    assert "/dev/full: cannot be written (No space left on device)" in done.err
    assert "Traceback" not in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX has them")
@pytest.mark.usefixtures("interruptible")
def test_interrupted_run_leaves_a_readable_record(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wait_for: Callable[[Callable[[], bool]], None],
) -> None:
    """In a separate process, with properties of the package."""
    record = tmp_path / "slow.jsonl"
    arguments = ["run", "--profile", "smoke", "--subject", "cli_subjects:slow", "--only", "draws"]
    with subprocess.Popen(
        [sys.executable, "-m", "attncheck", *arguments, "--workers", "1", "--record", str(record)],
        cwd=folder,
        env=os.environ | {"PYTEST_ADDOPTS": "--no-such-option"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_for(lambda: record.exists() and record.read_bytes().count(b"\n") > 1)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole process group
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()  # a hung one would be waited for
    assert f"Interrupted. {record} holds the finished results." in output
    assert process.returncode == ExitCode.INTERRUPTED
    assert errors.splitlines()[-1] == "attncheck: interrupted"
    lines = list(read(record))
    assert isinstance(lines[0], Manifest)
    assert {planned.item.partition("@")[0] for planned in lines[0].planned} == {"draws"}
    assert isinstance(lines[1], Result)
    assert main(["gate", str(record), "--baseline", str(folder / "none.jsonl")]) == ExitCode.INCOMPLETE
    assert "planned results are missing" in capsys.readouterr().out


# A slow worker start: execnet starts workers with Python's option -c.
BEGINNING = """
import pathlib, sys, time
if "-c" in sys.orig_argv:
    pathlib.Path("begun").touch()
    time.sleep(2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX has them")
def test_ctrl_c_while_workers_begin_is_one_line(
    interrupt: Callable[[list[str], Path], tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BEGINNING, encoding="utf-8")
    _, errors = interrupt(
        ["-m", "attncheck", "run", "--profile", "smoke", "--only", "draws", "--workers", "1"], tmp_path
    )
    assert errors == "attncheck: interrupted\n"


# The message on a record of a user's simulator.
TRUSTED = ("--trust", "cli_subjects")


# replay -------------------------------------------------------------------------------------------


def test_replay_refuses_a_record_whose_digits_were_edited(
    small_run: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "edited.jsonl"
    data = small_run.record.read_bytes()
    result = next(line for line in read(small_run.record) if isinstance(line, Result))
    record.write_bytes(data.replace(b'"effect":', b'"effect":1', 1))
    assert main(["replay", str(record), result.id]) == ExitCode.UNUSABLE
    assert f"record={record}: its digest is not that of its results" in refused(capsys.readouterr().err)


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the folder of the simulators."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def a_result(record: Path, verdict: str) -> Result:
    return next(line for line in read(record) if isinstance(line, Result) and line.verdict == verdict)


@pytest.mark.parametrize("verdict", ["consistent", "violated", "not examined"])
def test_replay_repeats_a_result_to_the_digit(
    inside: None, shifted_run: Done, capsys: pytest.CaptureFixture[str], verdict: str
) -> None:
    result = a_result(shifted_run.record, verdict)
    assert main(["replay", str(shifted_run.record), result.id, *TRUSTED]) == ExitCode.of(verdict)
    recorded, repeated = (line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()[1:3])
    assert recorded == repeated
    assert recorded.startswith(verdict)
    assert all(f"{p:.17g}" in recorded for p in result.p_values)


def test_replay_with_a_mended_simulator(inside: None, shifted_run: Done, capsys: pytest.CaptureFixture[str]) -> None:
    result = a_result(shifted_run.record, "violated")
    arguments = ["replay", str(shifted_run.record), result.id, "--subject", "cli_subjects:small"]
    assert main(arguments) == ExitCode.CONSISTENT
    assert "The digits differ: the subject was cli_subjects:shifted, now cli_subjects:small." in capsys.readouterr().out


def test_replay_says_which_versions_and_arithmetic_differ(
    inside: None, tmp_path: Path, shifted_run: Done, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = next(read(shifted_run.record))
    assert isinstance(manifest, Manifest)
    result = a_result(shifted_run.record, "consistent")
    writer = Writer(tmp_path / "old.jsonl")
    changes: dict[str, dict[str, str]] = {
        "versions": {**manifest.versions, "numpy": "1.0"},
        "machine": {**manifest.machine, "arithmetic": "openblas 0.3 Haswell", "cores": "1000"},
    }
    writer.write(msgspec.structs.replace(manifest, **changes))
    writer.write(msgspec.structs.replace(result, p_values=[0.25]))
    writer.close()
    assert main(["replay", str(tmp_path / "old.jsonl"), result.id, *TRUSTED]) == ExitCode.CONSISTENT
    said = capsys.readouterr().out
    assert "The digits differ: numpy was 1.0, now " in said
    # BLAS kernels depend on the processor, and affect rounding; the number of cores does not.
    assert "; arithmetic was openblas 0.3 Haswell, now openblas" in said
    assert not re.search(r"\bcores\b", said)


def test_replay_of_what_is_not_there_suggests_what_is(small_run: Done, capsys: pytest.CaptureFixture[str]) -> None:
    result = a_result(small_run.record, "consistent")
    assert main(["replay", str(small_run.record), result.id[:-1]]) == ExitCode.UNUSABLE
    assert result.id in refused(capsys.readouterr().err)
