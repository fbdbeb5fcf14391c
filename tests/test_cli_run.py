"""`attncheck run` and `attncheck replay`, as a person uses them: in any folder, and with what goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from attncheck.cli import main
from attncheck.exit_codes import ExitCode
from attncheck.records import Closing, Line, Manifest, Result, Writer, read

ROOT = Path(__file__).resolve().parents[1]

# Simulators that support few layers, so that a whole run takes seconds. No other test has a module of that
# name: what is imported into this process stays.
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

def crashing(layer, size, rng):
    if not os.path.exists("crashed"):
        open("crashed", "x").close()
        os._exit(3)
    return collapsed(layer, size, rng)

def broken(layer, size, rng):
    raise ValueError("not in\\nthe mood")

def slow(layer, size, rng):
    time.sleep(1)
    return collapsed(layer, size, rng)

for function in (small, shifted, crashing, broken, slow):
    function.supports = one_number
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that is no clone, with simulators, and a configuration and a conftest that do not matter."""
    place = tmp_path_factory.mktemp("elsewhere")
    (place / "cli_subjects.py").write_text(SUBJECTS, encoding="utf-8")
    (place / "conftest.py").write_text("raise RuntimeError('none of its business')\n", encoding="utf-8")
    (place / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n", encoding="utf-8")
    return place


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "attncheck", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=300,
    )


def examined(folder: Path, subject: str, name: str, *more: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the properties on one of the simulators; return what it said, and the record."""
    record = folder / f"{name}.jsonl"
    arguments = ["run", "--profile", "smoke", "--subject", f"cli_subjects:{subject}", "--record", str(record), *more]
    return command(*arguments, cwd=folder, PYTEST_ADDOPTS="--no-such-option"), record


@pytest.fixture(scope="module")
def small_run(folder: Path) -> tuple[subprocess.CompletedProcess[str], Path]:
    return examined(folder, "small", "small", "--workers", "2")


@pytest.fixture(scope="module")
def shifted_run(folder: Path) -> tuple[subprocess.CompletedProcess[str], Path]:
    return examined(folder, "shifted", "shifted", "--workers", "0", "--report", "shifted.html")


def refused(said: str) -> str:
    """Return an error after checking that it is one line that starts with who speaks."""
    assert said.startswith("attncheck: ")
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert "Traceback" not in said
    return said


# run ----------------------------------------------------------------------------------------------


def test_run_works_in_any_folder_and_leaves_only_its_record(
    folder: Path, small_run: tuple[subprocess.CompletedProcess[str], Path]
) -> None:
    done, record = small_run
    assert done.returncode == ExitCode.CONSISTENT, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith(
        "attncheck: subject cli_subjects:small, seed 0, profile smoke, false-alarm budget 1e-06\n"
    )
    assert "CONSISTENT: cli_subjects:small" in done.stdout
    assert isinstance(list(read(record))[-1], Closing)
    known = {"cli_subjects.py", "conftest.py", "pytest.ini", "small.jsonl"}
    assert {path.name for path in folder.iterdir()} - known <= {"shifted.jsonl", "shifted.html", "reports"}


def test_run_renders_a_report(folder: Path, shifted_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, _ = shifted_run
    assert "\nReport: shifted.html\n" in done.stdout
    page = (folder / "shifted.html").read_text(encoding="utf-8")
    assert "cli_subjects:shifted" in page
    assert "violated" in page.lower()


def without_time(line: Line) -> Line:
    if isinstance(line, Manifest):
        return msgspec.structs.replace(line, started="")
    changes = {"content": ""} if isinstance(line, Closing) else {}
    return msgspec.structs.replace(line, seconds=0.0, **changes)


@pytest.mark.parametrize("name", ["small", "shifted"])
def test_run_and_pytest_write_the_same_record(
    folder: Path,
    tmp_path: Path,
    name: str,
    small_run: tuple[subprocess.CompletedProcess[str], Path],
    shifted_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    """With two workers against none, and none against two."""
    record, workers = (small_run[1], 0) if name == "small" else (shifted_run[1], 2)
    options = ["--attncheck-profile", "smoke", "--attncheck-subject", f"cli_subjects:{name}"]
    options += ["--attncheck-record", str(tmp_path / "record.jsonl"), "-n", str(workers), "-p", "no:cacheprovider"]
    with_pytest = [sys.executable, "-m", "pytest", "-q", str(ROOT / "properties"), *options]
    done = subprocess.run(
        with_pytest,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == (0 if name == "small" else 1), done.stdout

    def told(path: Path) -> list[bytes]:
        return sorted(msgspec.json.encode(without_time(line), order="sorted") for line in read(path))

    assert told(tmp_path / "record.jsonl") == told(record)


def test_run_with_a_fault_says_what_is_wrong(shifted_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, record = shifted_run
    assert done.returncode == ExitCode.VIOLATED
    assert done.stderr == ""
    assert "VIOLATED: " in done.stdout
    assert "observed: mean of the outputs 0.5" in done.stdout
    assert f"replay:   attncheck replay {record} " in done.stdout


@pytest.mark.parametrize(
    ("subject", "workers", "code", "says"),
    [
        ("broken", "0", ExitCode.UNUSABLE, "ValueError: not in the mood"),
        ("crashing", "1", ExitCode.INCOMPLETE, "the process that examined it crashed"),
    ],
)
def test_run_of_a_simulator_that_fails(folder: Path, subject: str, workers: str, code: ExitCode, says: str) -> None:
    done, record = examined(folder, subject, subject, "--workers", workers)
    assert done.returncode == code, done.stdout + done.stderr
    if code == ExitCode.UNUSABLE:
        assert says in refused(done.stderr)
    else:
        assert says in done.stdout
    *_, closing = read(record)
    record.unlink()
    (folder / "crashed").unlink(missing_ok=True)
    assert isinstance(closing, Closing)
    assert closing.verdict == "incomplete"


def test_run_whose_record_cannot_be_written(folder: Path) -> None:
    done = command("run", "--profile", "smoke", "--workers", "0", "--record", "/dev/full", cwd=folder)
    assert done.returncode == ExitCode.UNUSABLE
    assert "/dev/full: cannot be written (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr


def waits_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError("nothing happened for two minutes")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX has them")
@pytest.mark.usefixtures("interruptible")
def test_interrupted_run_leaves_a_readable_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = folder / "slow.jsonl"
    arguments = [
        "run",
        "--profile",
        "smoke",
        "--subject",
        "cli_subjects:slow",
        "--workers",
        "1",
        "--record",
        str(record),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "attncheck", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            waits_for(lambda: record.exists() and record.read_bytes().count(b"\n") > 1)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()  # one that hangs on would be waited for
    assert process.returncode == ExitCode.INTERRUPTED
    assert refused(errors) == "attncheck: interrupted\n"
    lines = list(read(record))
    assert isinstance(lines[0], Manifest)
    assert isinstance(lines[1], Result)
    assert main(["gate", str(record), "--baseline", str(folder / "none.jsonl")]) == ExitCode.INCOMPLETE
    assert "planned and not reported" in capsys.readouterr().out
    record.unlink()


# A worker that takes its time to begin: execnet starts it with Python's option -c.
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
    _, errors = interrupt(["-m", "attncheck", "run", "--profile", "smoke", "--workers", "2"], tmp_path)
    assert errors == "attncheck: interrupted\n"


def test_properties_are_shipped_with_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert shipped["properties"] == "attncheck/_properties"
    assert project["project"]["scripts"] == {"attncheck": "attncheck.cli:main"}


# replay -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, -2])
@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"smoke"', b'"mega"').replace(b'"text":"', b'"text":"so '),
        lambda line: line[:-1] + b"\r\n",
    ],
    ids=["edited", "other line ends"],
)
def test_replay_refuses_a_record_that_was_edited(
    small_run: tuple[subprocess.CompletedProcess[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[bytes], bytes],
    number: int,
) -> None:
    """Before, in and after the line of the result."""
    record = tmp_path / "edited.jsonl"
    data = small_run[1].read_bytes().splitlines(keepends=True)
    result = next(line for line in read(small_run[1]) if isinstance(line, Result))
    data[number] = damage(data[number])
    record.write_bytes(b"".join(data))
    assert record.read_bytes() != small_run[1].read_bytes()
    assert main(["replay", str(record), result.id]) == ExitCode.UNUSABLE
    assert f"record={record}: was edited after the run" in refused(capsys.readouterr().err)


def a_result(record: Path, verdict: str) -> Result:
    return next(line for line in read(record) if isinstance(line, Result) and line.verdict == verdict)


@pytest.mark.parametrize("verdict", ["consistent", "violated", "not examined"])
def test_replay_repeats_a_result_to_the_digit(
    folder: Path,
    shifted_run: tuple[subprocess.CompletedProcess[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    verdict: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    result = a_result(shifted_run[1], verdict)
    assert main(["replay", str(shifted_run[1]), result.id]) == ExitCode.of(verdict)
    recorded, repeated = (line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()[1:3])
    assert recorded == repeated
    assert recorded.startswith(verdict)
    assert all(f"{p:.17g}" in recorded for p in result.p_values)


def test_replay_with_a_mended_simulator(
    folder: Path,
    shifted_run: tuple[subprocess.CompletedProcess[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    result = a_result(shifted_run[1], "violated")
    arguments = ["replay", str(shifted_run[1]), result.id, "--subject", "cli_subjects:small"]
    assert main(arguments) == ExitCode.CONSISTENT
    assert "The digits differ: the subject was cli_subjects:shifted, now cli_subjects:small." in capsys.readouterr().out


def test_replay_says_which_versions_and_arithmetic_differ(
    folder: Path,
    tmp_path: Path,
    shifted_run: tuple[subprocess.CompletedProcess[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    manifest = next(read(shifted_run[1]))
    assert isinstance(manifest, Manifest)
    result = a_result(shifted_run[1], "consistent")
    writer = Writer(tmp_path / "old.jsonl")
    changes: dict[str, dict[str, str]] = {
        "versions": {**manifest.versions, "numpy": "1.0"},
        "machine": {**manifest.machine, "arithmetic": "openblas 0.3 Haswell", "cores": "1000"},
    }
    writer.write(msgspec.structs.replace(manifest, **changes))
    writer.write(msgspec.structs.replace(result, p_values=[0.25]))
    writer.close()
    assert main(["replay", str(tmp_path / "old.jsonl"), result.id]) == ExitCode.CONSISTENT
    said = capsys.readouterr().out
    assert "The digits differ: numpy was 1.0, now " in said
    # Kernels are chosen for the processor, and round as they do; how many cores there are changes nothing.
    assert "; arithmetic was openblas 0.3 Haswell, now openblas" in said
    assert "cores" not in said


def test_replay_of_what_is_not_there_suggests_what_is(
    small_run: tuple[subprocess.CompletedProcess[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    result = a_result(small_run[1], "consistent")
    assert main(["replay", str(small_run[1]), result.id[:-1]]) == ExitCode.UNUSABLE
    assert result.id in refused(capsys.readouterr().err)
