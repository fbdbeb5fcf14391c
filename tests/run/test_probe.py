"""Probe calls: a subject that always fails gives one error line, and a record with the reason."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.processes import Processes
from attncheck._lib.workers import InProcess, LostTask
from attncheck.commands.cli import main
from attncheck.records.schema import Closing, read
from attncheck.runs.options import RunOptions
from attncheck.runs.probe import refusal
from attncheck.runs.run import Run
from attncheck.runs.tasks import Examination
from attncheck.subject import direct

SUBJECTS = """
import numpy as np
import os

def raising(layer, inputs, rng):
    raise ValueError("boom")

def undefined(layer, inputs, rng):
    return {"outputs": inputs * np.nan}

def misshapen(layer, inputs, rng):
    return {"outputs": inputs[:, 0]}

def deaf(layer, inputs, rng):
    return {"outputs": inputs}

def undecided(layer, inputs, rng):
    return {"outputs": inputs * rng.standard_normal()}

def _supports(layer):
    raise KeyError("width")

undecided.supports = _supports


def ungrouped(layer, inputs, rng):
    return {"outputs": inputs}


ungrouped.supports = lambda layer: layer.num_kv_heads is None or layer.groups

def leaving(layer, inputs, rng):
    os._exit(3)
"""
SAID = {
    "raising": "subject=failing:raising: raised ValueError: boom (failing.py:6) on n=",
    "undefined": "subject['outputs'][0, 0, 0]=nan: is not finite",
    "misshapen": "subject['outputs'].shape=",
    "deaf": "two different generators gave the same outputs",
    "undecided": "failing:undecided.supports: raised KeyError: 'width'",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "failing.py").write_text(SUBJECTS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "said"), SAID.items())
def test_a_subject_that_always_fails_is_one_error(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    run = ["run", "--profile=smoke", "--only=draws", "--workers=0", f"--subject=failing:{name}"]
    assert main([*run, "--record=run.jsonl", "--report=page.html"]) == ExitCode.UNUSABLE
    _, first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("ERROR: ")
    assert said in first
    assert first.endswith("Nothing was examined.")
    assert sum("Traceback" in line for line in rest) == (name in ("raising", "undecided"))
    assert not any("missing" in line or "attncheck/" in line for line in rest)
    *_, closing = read(folder / "run.jsonl")
    assert isinstance(closing, Closing)
    assert closing.verdict == "incomplete"
    assert main(["gate", "run.jsonl", "--baseline=none.jsonl"]) == ExitCode.INCOMPLETE
    assert said in capsys.readouterr().out
    assert "nothing was examined" in (folder / "page.html").read_text("utf-8")


def test_a_subject_that_ends_its_process_is_refused(folder: Path) -> None:
    run = planned("failing:leaving", AttentionLayer(width=4, seq_len=2, num_heads=1))
    with Processes(1) as workers:
        refused = refusal(run, workers)
    assert refused is not None
    assert "crashed its process" in refused.unusable


def planned(subject: object, *layers: AttentionLayer) -> Run:
    """Return a run of a subject that supports only these layers."""
    run = Run.of(RunOptions(subject=subject, profile="smoke"))
    run = dataclasses.replace(run, subject=dataclasses.replace(run.subject, layers=layers))
    return run.planning(item.id for item in run.items_on("draws", layers))


@pytest.mark.parametrize(("bad", "refused"), [((4,), False), ((4, 8), False), ((4, 8, 16), True)])
def test_one_probe_that_works_is_enough(bad: tuple[int, ...], refused: bool) -> None:
    """The first, the cheapest and the most expensive layer are tried."""
    tried = []

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        tried.append(layer.width)
        if layer.width in bad:
            raise ValueError(f"width {layer.width}")
        return direct(layer, size, rng)

    layers = [AttentionLayer(width=width, seq_len=2, num_heads=1) for width in (8, 4, 12, 16)]
    run = planned(subject, *layers)
    found = refusal(run, InProcess())
    assert (found is not None) == refused
    assert list(dict.fromkeys(tried)) == ([8] if 8 not in bad else [8, 4, 16])
    if found is not None:
        assert "width 8" in found.unusable


def test_a_call_that_hangs_is_not_waited_for_again() -> None:
    tried = []

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        tried.append(layer.width)
        while True:
            time.sleep(0.01)

    layers = [AttentionLayer(width=width, seq_len=2, num_heads=1) for width in (8, 4, 16)]
    run = planned(subject, *layers)
    found = refusal(dataclasses.replace(run, subject=dataclasses.replace(run.subject, timeout=0.2)), InProcess())
    assert found is not None
    assert "took more than 0.2 s for one call" in found.unusable
    assert tried == [8]


def test_an_import_that_hangs_in_a_worker_is_stopped(folder: Path) -> None:
    hanging = "import multiprocessing, time\nif multiprocessing.parent_process():\n    time.sleep(600)\n"
    (folder / "hanging.py").write_text(hanging + SUBJECTS, "utf-8")
    run = planned("hanging:raising", AttentionLayer(width=4))
    with Processes(1) as workers:
        found = refusal(dataclasses.replace(run, subject=dataclasses.replace(run.subject, timeout=1.0)), workers)
    assert found is not None
    assert "cannot be imported: GuardError: took more than 1 s" in found.unusable


def test_texts_of_an_error_steer_no_terminal() -> None:
    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        raise ValueError("x\n::error::forged \x1b[31m")

    found = refusal(planned(subject, AttentionLayer(width=4)), InProcess())
    assert found is not None
    lines = [found.unusable, *found.traceback.splitlines()]
    assert not any("\x1b" in line or line.strip().startswith("::") for line in lines)
    assert lines[1].startswith("Traceback")


class Dying(InProcess):
    def gather(self, function: Any, tasks: Any) -> Iterator[tuple[int, Any]]:
        return enumerate(LostTask("gone") for _ in tasks)


def test_lost_probes_are_failures() -> None:
    found = refusal(planned(direct, AttentionLayer(width=4)), Dying())
    assert isinstance(found, Examination)
    assert found.unusable.startswith("subject=attncheck.subject:direct: a probe call on n=4")


def test_a_declaration_that_fails_on_one_layer_ends_the_run_before_it_begins(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "--profile=smoke", "--workers=0", "--subject=failing:ungrouped", "--record=run.jsonl"]
    assert main(run) == ExitCode.UNUSABLE
    _, first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("ERROR: failing:ungrouped.supports: raised AttributeError: ")
    assert "num_kv_heads=2" in first
