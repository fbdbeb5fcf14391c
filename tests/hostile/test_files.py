"""Damaged files are refused in one line, in little time and memory, and nothing is lost or executed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attncheck._lib.exit_codes import ExitCode

from .damage import damage_file
from .sources import OUTPUTS, READINGS
from .test_names import steering

pytest.importorskip("resource", reason="memory is measured on POSIX only")

FILES, CHUNK = 500, 63
#: All files with ATTNCHECK_FUZZ=all, else the first of them; ATTNCHECK_FUZZ=7 takes other 500 files.
CHOSEN = os.environ.get("ATTNCHECK_FUZZ", "")
STARTS = range(0, FILES if CHOSEN else CHUNK, CHUNK)
MOST_SECONDS, MOST_MEMORY = 10.0, 2**30
WORKER = Path(__file__).with_name("worker.py")


def prepared(sources: Path, folder: Path, number: int) -> tuple[str, list[str]]:
    """Make a folder with one damaged file; return what was done to it, and the command."""
    rng = random.Random(f"{CHOSEN if CHOSEN != 'all' else ''}{number}")
    damaged, arguments = READINGS[number % len(READINGS)]
    folder.mkdir()
    for name in {damaged, *arguments, "history.jsonl", "tiny_simulator.py", "trap.py"}:
        if (sources / name).is_file():
            shutil.copyfile(sources / name, folder / name)
    what = damage_file(folder / damaged, rng)
    if damaged == "name":
        arguments = ("explain", (folder / "name").read_bytes().decode())
    ids = [json.loads(line)["id"] for line in (sources / "whole.jsonl").read_bytes().splitlines()[1:-1]]
    id = rng.choice(ids)
    return f"{damaged} {what}", [id if each == "ID" else each for each in arguments]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of each file of a folder, None for those that are not files."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {name: (folder / name).read_bytes() if _is_file(folder / name) else None for name in names}


def _is_file(path: Path) -> bool:
    return not path.is_symlink() and path.is_file()


def run(tasks: Sequence[dict[str, Any]], scratch: Path) -> list[dict[str, Any]]:
    """Run commands in one process; in another one after each that ends it."""
    done: list[dict[str, Any]] = []
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATTNCHECK", "GITHUB"))}
    while len(done) < len(tasks):
        (scratch / "tasks.json").write_text(json.dumps(tasks[len(done) :]))
        worker = subprocess.run(
            [sys.executable, str(WORKER), str(scratch / "tasks.json")],
            env=kept | threads | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
            capture_output=True,
            text=True,
            check=False,
        )
        done += map(json.loads, worker.stdout.splitlines())
        if worker.returncode:
            done.append({"ended": f"{worker.returncode}: {worker.stderr[-2000:]}"})
    return done


def problems(outcome: dict[str, Any], damaged: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what a command did that it must not."""
    if "ended" in outcome:
        return [f"hung, or ended the process: {outcome['ended']}"]
    code, err = outcome["code"], outcome["err"]
    found = []
    if code not in set(ExitCode):
        found.append(f"exit code {code}")
    if "Traceback" in err + outcome["out"] or "internal error" in err + outcome["out"]:
        found.append("failed with an error of its own")
    lines = [line for line in err.splitlines() if "% done after" not in line]
    if len(lines) != (code == ExitCode.UNUSABLE):
        found.append(f"{len(lines)} lines on standard error")
    elif (
        lines
        and damaged != "name"
        and not any(name in lines[0] for name in {damaged, *before, "recipe=recipe"} if "." in name or "=" in name)
    ):
        found.append("names no file")
    if outcome["seconds"] > MOST_SECONDS:
        found.append(f"took {outcome['seconds']:.1f} s")
    if outcome["peak"] > MOST_MEMORY:
        found.append(f"took {outcome['peak'] / 2**20:.0f} MiB")
    if outcome["pickled"] or "executed" in after:
        found.append(f"executed something {outcome['pickled']}")
    if printed := steering(outcome["out"] + err):
        found.append(f"printed {printed!a}")
    replaceable = set() if code == ExitCode.UNUSABLE else {*OUTPUTS, "resumed.jsonl", "plot.svg"}
    changed = {name for name in {*before, *after} - replaceable if before.get(name) != after.get(name, b"gone")}
    for name in sorted(changed):
        grown = name == "history.jsonl" and after.get(name, b"").startswith(before.get(name, b""))
        candidate = name.endswith(".candidate") and code == ExitCode.INCOMPLETE
        owed = name == "merged.jsonl" and code != ExitCode.UNUSABLE
        if not (grown and code != ExitCode.UNUSABLE) and not candidate and not owed:
            found.append(f"changed {name}")
    return found


@pytest.mark.parametrize("start", STARTS)
def test_damaged_files_are_refused_and_nothing_else_happens(sources: Path, tmp_path: Path, start: int) -> None:
    numbers = range(start, min(start + CHUNK, FILES))
    made = [prepared(sources, tmp_path / str(number), number) for number in numbers]
    before = [contents(tmp_path / str(number)) for number in numbers]
    tasks = [
        {"folder": str(tmp_path / str(number)), "arguments": arguments}
        for number, (_, arguments) in zip(numbers, made, strict=True)
    ]
    outcomes = run(tasks, tmp_path)
    told = []
    for number, (what, arguments), old, outcome in zip(numbers, made, before, outcomes, strict=True):
        found = problems(outcome, what.partition(" ")[0], old, contents(tmp_path / str(number)))
        if found:
            command = " ".join(arguments)[:100]
            told.append(f"{number} ({what}) {command}: {'; '.join(found)}\n    {outcome.get('err', '')[:400]!a}")
    assert not told, "\n" + "\n".join(told)
    refused = sum(outcome["code"] == ExitCode.UNUSABLE for outcome in outcomes)
    assert refused >= 0.4 * len(outcomes), "most damage has to be noticed"
