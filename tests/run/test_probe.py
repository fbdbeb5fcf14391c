"""Probe calls: a subject that always fails gives one error line, and a record with the reason."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.processes import Processes
from attncheck._lib.workers import InProcess
from attncheck.commands.cli import main
from attncheck.runs.options import RunOptions
from attncheck.runs.probe import refusal
from attncheck.runs.run import Run
from attncheck.subject import direct
from tests.recorded import closing_of

SUBJECTS = """
def raising(layer, inputs, rng):
    raise ValueError("boom\\nin the second line")

def deaf(layer, inputs, rng):
    return {"outputs": inputs}

def undecided(layer, inputs, rng):
    return {"outputs": inputs * rng.standard_normal()}

def ungrouped(layer, inputs, rng):
    return {"outputs": inputs}

def _supports(layer):
    raise KeyError("width")

undecided.supports = _supports
ungrouped.supports = lambda layer: layer.num_kv_heads is None or layer.groups
"""
ERRORS = {
    "raising": r"subject=failing:raising: raised ValueError: boom in the second line \(failing.py:3\) on n=",
    "deaf": "two different generators gave the same outputs",
    "undecided": "failing:undecided.supports: raised KeyError: 'width'",
    # On some layers only; the run ends before it begins.
    "ungrouped": "failing:ungrouped.supports: raised AttributeError: .*num_kv_heads=2",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "failing.py").write_text(SUBJECTS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ERRORS)
def test_a_subject_that_always_fails_is_one_error(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = ["run", "--profile=smoke", "--only=draws", "--workers=0", f"--subject=failing:{name}"]
    assert main([*run, "--record=run.jsonl", "--report=page.html"]) == ExitCode.UNUSABLE
    _, first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("ERROR: ")
    assert re.search(ERRORS[name], first)
    assert first.endswith("Nothing was examined.")
    assert sum("Traceback" in line for line in rest) == (": raised " in first)
    assert not any("missing" in line or "attncheck/" in line for line in rest)
    assert closing_of(folder / "run.jsonl").verdict == "incomplete"
    assert main(["gate", "run.jsonl", "--baseline=none.jsonl"]) == ExitCode.INCOMPLETE
    assert re.search(ERRORS[name], capsys.readouterr().out)
    assert "nothing was examined" in (folder / "page.html").read_text("utf-8")


def test_a_run_that_fails_before_it_begins_leaves_no_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gate would judge that of an earlier run."""
    run, outputs = ["run", "--profile=smoke", "--only=draws,inputs", "--workers=0"], ["--summary=s.md", "--json=j.json"]
    gate = ["gate", "reports/output/record.jsonl", "--baseline=base.jsonl", *outputs]
    assert main([*run, "--only=scores"]) == ExitCode.CONSISTENT
    assert main([*gate, "--write-baseline"]) == ExitCode.CONSISTENT
    assert main([*run, "--subject=failing:absent"]) == ExitCode.UNUSABLE
    assert "The record of an earlier run is now reports/output/record.jsonl.earlier." in capsys.readouterr().out
    assert main(gate) == ExitCode.UNUSABLE
    assert json.loads((folder / "j.json").read_text("utf-8"))["verdict"] == "unusable"
    assert "record.jsonl: cannot be read" in (folder / "s.md").read_text("utf-8")
    assert main(["gate", "reports/output/record.jsonl.earlier", *gate[2:]]) == ExitCode.CONSISTENT


def planned(subject: object, *widths: int, timeout: float = 60.0) -> Run:
    """Return a run of a subject that supports only layers of these widths."""
    layers = tuple(AttentionLayer(width=width, seq_len=2, num_heads=1) for width in widths)
    run = Run.of(RunOptions(subject=subject, profile="smoke", timeout=timeout))
    run = dataclasses.replace(run, subject=dataclasses.replace(run.subject, layers=layers))
    return run.planning(item.id for item in run.items_on("draws", layers))


@pytest.mark.parametrize("bad", [(4,), (4, 8), (4, 8, 16)])
def test_one_probe_that_works_is_enough(bad: tuple[int, ...]) -> None:
    """The first, the cheapest and the most expensive layer are tried; texts of errors steer no terminal."""
    tried = []

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        tried.append(layer.width)
        if layer.width in bad:
            raise ValueError(f"width {layer.width}\n::error::forged \x1b[31m")
        return direct(layer, size, rng)

    refused = refusal(planned(subject, 8, 4, 12, 16), InProcess())
    assert (refused is not None) == (len(bad) == 3)
    assert list(dict.fromkeys(tried)) == ([8] if 8 not in bad else [8, 4, 16])
    if refused is not None:
        assert "width 8" in refused.unusable
        lines = [refused.unusable, *refused.traceback.splitlines()]
        assert not any("\x1b" in line or line.strip().startswith("::") for line in lines)
        assert lines[1].startswith("Traceback")


def test_a_call_that_hangs_is_not_waited_for_again() -> None:
    tried = []

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        tried.append(layer.width)
        while True:
            time.sleep(0.01)

    refused = refusal(planned(subject, 8, 4, 16, timeout=0.2), InProcess())
    assert refused is not None
    assert "took more than 0.2 s for one call" in refused.unusable
    assert tried == [8]


def test_an_import_that_hangs_in_a_worker_is_stopped(folder: Path) -> None:
    hanging = "import multiprocessing, time\nif multiprocessing.parent_process():\n    time.sleep(600)\n"
    (folder / "hanging.py").write_text(hanging + SUBJECTS, "utf-8")
    with Processes(1) as workers:
        refused = refusal(planned("hanging:raising", 4, timeout=1.0), workers)
    assert refused is not None
    assert "cannot be imported: GuardError: took more than 1 s" in refused.unusable
