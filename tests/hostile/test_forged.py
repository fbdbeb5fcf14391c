"""What the gate notices of a forged record, and what only `attncheck replay` does: as docs/trust.md says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Runs
from .damage import sealed

Lines = list[dict[str, Any]]
GATE = ("gate", "whole.jsonl", "--baseline", "baseline.jsonl")
OTHER = "elsewhere:simulate"


def _examined(lines: Lines) -> dict[str, Any]:
    return next(line for line in lines if line.get("check") == "scores.scale" and line["p_values"])


def p_value_edited(lines: Lines) -> None:
    _examined(lines)["p_values"] = [0.321]


def effect_edited(lines: Lines) -> None:
    _examined(lines)["effect"] += 0.001


def verdict_edited(lines: Lines) -> None:
    _examined(lines)["verdict"] = "violated"


def pools_dropped(lines: Lines) -> None:
    lines[1:] = [line for line in lines[1:] if "pool" not in line.get("case", {})]
    lines[-1]["reported"] = len(lines) - 2


def result_dropped(lines: Lines) -> None:
    lines.remove(_examined(lines))
    lines[-1]["reported"] = len(lines) - 2


def result_dropped_from_the_plan(lines: Lines) -> None:
    gone = _examined(lines)["id"]
    result_dropped(lines)
    lines[0]["planned"] = [each for each in lines[0]["planned"] if each["id"] != gone]


def result_doubled(lines: Lines) -> None:
    lines.insert(1, _examined(lines))
    lines[-1]["reported"] = len(lines) - 2


def subject_renamed(lines: Lines) -> None:
    lines[0]["subject"] = OTHER


Forgery = Callable[[Lines], None]
#: The exit code of the gate where hash and digest were made anew.
CODES: dict[Forgery, int] = {
    p_value_edited: 0,
    effect_edited: 0,
    pools_dropped: 0,
    verdict_edited: 1,
    result_dropped: 4,
    result_dropped_from_the_plan: 0,
    result_doubled: 4,
    subject_renamed: 4,
}


def forge(path: Path, forgery: Forgery, anew: bool = True) -> None:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    forgery(lines)
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(sealed(content) if anew else content)


@pytest.mark.sampled
@pytest.mark.parametrize("forgery", CODES)
def test_edits_without_the_hash_are_refused(forgery: Forgery, runs: Runs) -> None:
    forge(Path("whole.jsonl"), forgery, anew=False)
    code, said = runs(*GATE)
    assert code == 2
    assert "was edited after the run" in said


@pytest.mark.parametrize(("forgery", "code"), CODES.items())
def test_edits_with_the_hash_made_anew(forgery: Forgery, code: int, runs: Runs) -> None:
    forge(Path("whole.jsonl"), forgery)
    assert runs(*GATE)[0] == code


def test_a_record_and_baseline_of_another_subject_pass(runs: Runs) -> None:
    for name in ("whole.jsonl", "earlier.jsonl"):
        forge(Path(name), subject_renamed)
    assert runs("gate", "earlier.jsonl", "--baseline", "other.jsonl", "--write-baseline")[0] == 0
    code, said = runs("gate", "whole.jsonl", "--baseline", "other.jsonl")
    assert (code, OTHER in said) == (0, True)


@pytest.mark.parametrize("forgery", [p_value_edited, effect_edited, verdict_edited])
def test_replay_finds_edited_digits(forgery: Forgery, runs: Runs) -> None:
    forge(Path("whole.jsonl"), forgery)
    id = _examined([json.loads(line) for line in Path("whole.jsonl").read_bytes().splitlines()])["id"]
    said = runs("replay", "whole.jsonl", id, "--trust", "tiny_simulator")[1]
    assert "The digits differ" in said
