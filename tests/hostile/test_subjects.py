"""Whatever a subject does, a run ends in seconds with a verdict or the reason for none, and leaves a readable record.

Each run is a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from attncheck.records.schema import Manifest, read

HERE = Path(__file__).parent
# Seconds after which a run counts as hung, and the time limit of a call.
_HUNG, _LIMIT = 120, 2
# Bytes of memory that a process may reserve, and bytes of output.
_MEMORY, _OUTPUT = 6 * 2**30, 20_000

VIOLATED, REFUSED, UNFINISHED, DONE = 1, 2, 4, 0


class Expected(NamedTuple):
    """Exit code, and what the output says."""

    code: int
    words: str


EXPECTED = {
    "mapping_fails_later": Expected(UNFINISHED, r"INCOMPLETE.*raised RuntimeError: unreadable .*mend the simulator"),
    "exits": Expected(REFUSED, r"raised SystemExit: 0"),
    "exhausts_memory": Expected(REFUSED, r"raised MemoryError"),
    "ends_process": Expected(REFUSED, r"a probe call on n=8 s=2 H=1 crashed its process"),
    "segfaults_later": Expected(
        UNFINISHED, r"its process died \(Fatal Python error: Segmentation fault at \S+\.py:\d+\)"
    ),
    "sleeps": Expected(REFUSED, r"took more than 2 s for one call; .*--timeout"),
    "sleeps_on_every": Expected(UNFINISHED, r"took more than 2 s for one call.*\(and 3 more like it\)"),
    "forks_and_raises": Expected(DONE, r"CONSISTENT"),
    "leaves_thread": Expected(DONE, r"CONSISTENT"),
    "enormous_later": Expected(UNFINISHED, r"subject\['scores'\]\.shape=\(1000000, 10000\): must be"),
    "counts_calls": Expected(DONE, r"CONSISTENT.*not reproducible.* has no digest"),
    "dies_when_questioned": Expected(
        VIOLATED, r"VIOLATED.*while a cause was searched, its process died.*cause: .*the fault begins with scores"
    ),
}


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command in a folder, in a process group of its own with little memory."""
    limited = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY},) * 2); "
        "from attncheck.commands.cli import program; program()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", limited, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
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


def examine(folder: Path, name: str) -> subprocess.Popen[str]:
    options = ["--profile", "smoke", "--only", "scores", "--only", "draws", "--record", "record.jsonl"]
    return begin(folder, "run", "--subject", f"subjects:{name}", "--workers", "1", "--timeout", f"{_LIMIT}", *options)


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are as POSIX has them")


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_ends_with_a_verdict_or_a_reason(name: str, tmp_path: Path) -> None:
    process = examine(tmp_path, name)
    output, errors = finish(process)
    assert process.returncode == EXPECTED[name].code, output + errors
    assert re.search(EXPECTED[name].words, output, re.DOTALL), output + errors
    assert "Traceback" not in errors
    complete = EXPECTED[name].code in (DONE, VIOLATED) and "This run has no digest" not in output
    assert ("Digest of all digits" in output) == complete
    assert len(output) + len(errors) < _OUTPUT
    if EXPECTED[name].code != REFUSED:
        assert isinstance(next(iter(read(tmp_path / "record.jsonl"))), Manifest)


def test_a_run_that_is_told_to_end_leaves_a_record(
    tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    process, record = examine(tmp_path, "pauses"), tmp_path / "record.jsonl"
    wait_for(lambda: record.exists() or process.poll() is not None)
    process.terminate()
    _, errors = finish(process)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "attncheck: interrupted"
    assert isinstance(next(iter(read(record))), Manifest)


def test_what_a_subject_prints_is_not_in_the_digest(tmp_path: Path) -> None:
    digests = []
    for name in ("right", "prints"):
        finish(examine(tmp_path, name))
        digests.append(json.loads((tmp_path / "record.jsonl").read_text("utf-8").splitlines()[-1])["digest"])
    assert digests[0] == digests[1]


def test_threads_that_go_on_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """In one process, whose threads Python waits for."""
    options = ["--profile", "smoke", "--only", "scores", "--workers", "0"]
    process = begin(tmp_path, "run", "--subject", "subjects:leaves_thread", *options)
    output, errors = finish(process)
    assert process.returncode == DONE, output + errors
    assert re.search(r"attncheck: ended although Thread-\d+ .* still runs", errors)
