"""Whatever a subject does, a run ends in seconds with a verdict or the reason for none, and leaves a readable record.

Subjects run in workers, or in a process of their own where they concern the command's.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.commands.cli import main
from attncheck.records.schema import Manifest, Result, read
from tests.recorded import closing_of

HERE = Path(__file__).parent
# Seconds after which a run counts as hung, and the time limit of a call; bytes of output.
_HUNG, _LIMIT, _OUTPUT = 120, 2, 20_000

VIOLATED, REFUSED, UNFINISHED, DONE = 1, 2, 4, 0
#: Exit code and output of a run of each subject.
EXPECTED = {
    "fails_later": (UNFINISHED, r"INCOMPLETE.*raised RuntimeError: unreadable .*mend the simulator"),
    "ends_process": (REFUSED, r"during a probe call on n=8 s=2 H=1, its process died"),
    "segfaults_later": (UNFINISHED, r"its process died \(Fatal Python error: Segmentation fault at \S+\.py:\d+\)"),
    "sleeps_on_every": (UNFINISHED, r"took more than 2 s for one call.*\(and 3 more like it\)"),
    "forks_and_raises": (DONE, r"CONSISTENT"),
    "prints": (DONE, r"CONSISTENT"),
    "counts_calls": (DONE, r"CONSISTENT.*not reproducible.* has no digest"),
    "dies_when_questioned": (
        VIOLATED,
        r"VIOLATED.*during the search for a cause, its process died.*cause: .*the fault begins with scores",
    ),
}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are as POSIX has them")


def arguments(name: str, *options: str) -> list[str]:
    limit = _LIMIT if name == "sleeps_on_every" else _HUNG  # on a busy machine, imports take seconds
    run = ["run", "--subject", f"subjects:{name}", "--profile", "smoke", "--only", "scores", "--timeout", f"{limit}"]
    return [*run, "--record", "record.jsonl", *options]


@pytest.mark.sampled
@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_ends_with_a_verdict_or_a_reason(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    code, text = EXPECTED[name]
    assert main(arguments(name, "--workers", "1")) == code
    output, errors = capfd.readouterr()
    assert re.search(text, output, re.DOTALL), output + errors
    assert "Traceback" not in errors
    complete = code in (DONE, VIOLATED) and "This run has no digest" not in output
    assert ("Digest of all digits" in output) == complete
    assert len(output) + len(errors) < _OUTPUT
    if code != REFUSED:
        assert isinstance(next(iter(read(tmp_path / "record.jsonl"))), Manifest)
    if name == "prints":  # and what it prints is not in the digest
        digest = closing_of(tmp_path / "record.jsonl").digest
        assert main(arguments("right", "--workers", "0")) == DONE
        assert closing_of(tmp_path / "record.jsonl").digest == digest


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command in a folder, in a separate process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "attncheck", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(HERE), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output of a command, which must end in time; kill what is left of it."""
    try:
        return process.communicate(timeout=_HUNG)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_end_leaves_a_record(
    number: int, tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    process, record = begin(tmp_path, *arguments("pauses", "--workers", "1")), tmp_path / "record.jsonl"
    wait_for(lambda: process.poll() is not None or (record.exists() and record.read_bytes().count(b"\n") > 1))
    if number == signal.SIGINT:  # as a terminal does: to the whole process group
        os.killpg(process.pid, number)
    else:
        process.terminate()
    output, errors = finish(process)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "attncheck: interrupted"
    assert re.search(r"Interrupted\. record\.jsonl holds [0-9]+ finished results?\.", output)
    manifest, first, *_ = read(record)
    assert isinstance(manifest, Manifest)
    assert isinstance(first, Result)
    assert main(["gate", str(record), "--baseline", str(tmp_path / "none.jsonl")]) == UNFINISHED
    assert "planned results are missing" in capsys.readouterr().out


# A slow worker start: execnet starts workers with Python's option -c.
BEGINNING = """
import pathlib, sys, time
if "-c" in sys.orig_argv:
    pathlib.Path("begun").touch()
    time.sleep(2)
"""


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_workers_begin_is_one_line(tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]) -> None:
    (tmp_path / "sitecustomize.py").write_text(BEGINNING, encoding="utf-8")
    process = begin(tmp_path, *arguments("right", "--workers", "1"))
    wait_for((tmp_path / "begun").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process)[1] == "attncheck: interrupted\n"


def test_threads_that_go_on_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """In one process, whose threads Python waits for."""
    process = begin(tmp_path, *arguments("leaves_thread", "--workers", "0"))
    output, errors = finish(process)
    assert process.returncode == DONE, output + errors
    assert re.search(r"attncheck: ended although Thread-\d+ .* still runs", errors)
