"""The GitHub action: its steps run as scripts, in order, with GitHub's variables."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from attncheck.evidence.ledger import Finding
from attncheck.gate.outputs import annotated

ROOT = Path(__file__).resolve().parents[2]
ACTION = (ROOT / "action.yml").read_text(encoding="utf-8")

SUBJECTS = """
from attncheck import AttentionLayer
from attncheck.subject import collapsed

def right(layer, size, rng):
    return collapsed(layer, size, rng)

def wrong(layer, size, rng):
    return collapsed(layer.replace(query_std=2.0 * layer.query_std), size, rng)

right.layers = wrong.layers = [AttentionLayer(width=4, seq_len=2, num_heads=1)]
"""


class Step(NamedTuple):
    name: str
    text: str
    script: str


def steps() -> list[Step]:
    found = []
    for text in re.split(r"^    - name: ", ACTION, flags=re.MULTILINE)[1:]:
        script = text.partition("run: |\n")[2]
        if script:
            found.append(Step(text.splitlines()[0], text, textwrap.dedent(script)))
    return found


def defaults() -> dict[str, str]:
    inputs = ACTION.partition("\ninputs:\n")[2].partition("\noutputs:\n")[0]
    each = re.findall(r"^  ([\w-]+):\n((?:    .*\n)+)", inputs, re.MULTILINE)
    named = {name: re.search(r"default: (.*)", text) for name, text in each}
    return {name: found[1].strip('"') if found else "" for name, found in named.items()}


class Done(NamedTuple):
    codes: list[int]
    said: str
    summary: str
    verdict: str


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with subjects, and an attncheck command on the path that examines one property.

    The command does nothing where its first argument is in the variable SKIPPED.
    """
    (tmp_path / "action_subjects.py").write_text(SUBJECTS, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "attncheck"
    few = '[ "$1" != run ] || set -- "$@" --only scores --workers 0'
    skip = '[ "$1" != "$SKIPPED" ] || exit 0'
    command.write_text(f'#!/bin/sh\n{skip}\n{few}\nexec "{sys.executable}" -m attncheck "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return tmp_path


def act(place: Path, skipped: str = "", **inputs: str) -> Done:
    """Run the steps as GitHub does: each in a separate bash with its environment."""
    given = defaults() | {name.replace("_", "-"): value for name, value in inputs.items()}
    summary, outputs = place / "summary.md", place / "outputs.txt"
    for path in (summary, outputs):
        path.write_text("", encoding="utf-8")
    codes, said = [], ""
    for step in steps():
        named = dict(re.findall(r"^        ([A-Z]+): \$\{\{ inputs\.([\w-]+) \}\}$", step.text, re.MULTILINE))
        environment = os.environ | {name: given[each] for name, each in named.items()}
        environment |= {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(outputs), "GITHUB_SHA": "cafe"}
        environment["SKIPPED"] = skipped
        environment["PATH"] = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.script]
        done = subprocess.run(shell, cwd=place, env=environment, capture_output=True, text=True, check=False)
        codes.append(done.returncode)
        said += done.stdout + done.stderr
    verdict = outputs.read_text(encoding="utf-8").strip()
    return Done(codes, said, summary.read_text(encoding="utf-8"), verdict)


@pytest.mark.skipif(shutil.which("bash") is None, reason="steps are scripts of bash")
def test_steps_do_what_a_pull_request_needs(place: Path) -> None:
    quick = {"profile": "smoke", "baseline": "baseline.jsonl.xz", "history": "history.jsonl"}
    first = act(place, subject="action_subjects:right", **quick)
    assert (first.codes, first.verdict) == ([0, 4, 0], "verdict=incomplete")
    assert "::error title=attncheck%3A completeness::there is no baseline" in first.said
    assert (place / "attncheck-output" / "report.html").exists()
    (place / "baseline.jsonl.xz.candidate").rename(place / "baseline.jsonl.xz")

    # The same commit has the same seed: its run, seconds ago, would come out the same.
    right = act(place, "run", subject="action_subjects:right", **quick)
    assert (right.codes, right.verdict) == ([0, 0, 0], "verdict=consistent")
    assert "::notice title=attncheck::CONSISTENT" in right.said
    assert right.summary.startswith("## attncheck: consistent\n")
    badge = json.loads((place / "attncheck-output" / "badge.json").read_text(encoding="utf-8"))
    assert badge == {"schemaVersion": 1, "label": "attncheck", "message": "consistent", "color": "brightgreen"}
    assert (place / "history.jsonl").exists()

    # The report with a baseline has been written above.
    wrong = act(place, "report", subject="action_subjects:wrong", **quick)
    assert (wrong.codes, wrong.verdict) == ([0, 1, 0], "verdict=violated")
    assert re.search(r"^::error title=attncheck%3A wrong::cause: \S", wrong.said, re.MULTILINE)
    assert "- **cause**: " in wrong.summary
    assert (place / "attncheck-output" / "comment.md").read_text(encoding="utf-8") == wrong.summary


@pytest.mark.skipif(shutil.which("bash") is None, reason="steps are scripts of bash")
def test_a_subject_that_cannot_be_imported_is_told(place: Path) -> None:
    done = act(place, subject="no_such_module:right", profile="smoke")
    assert done.codes[:2] == [0, 2]
    assert done.verdict == "verdict=unusable"
    assert "subject=no_such_module:right: cannot be imported" in done.said


def test_nothing_that_somebody_typed_is_a_part_of_a_script() -> None:
    found = steps()
    assert [step.name for step in found] == ["Hold the simulator to the theorem", "Gate", "Report"]
    for step in found:
        assert "${{" not in step.script
        assert "shell: bash" in step.text
    assert "pull_request_target" not in ACTION
    assert set(re.findall(r"inputs\.([\w-]+)", ACTION)) == set(defaults())


def test_annotations_are_within_the_limits_of_github() -> None:
    many = tuple(Finding("verdicts", "violated", f"reason {k}:\n100%, or so") for k in range(25))
    judgement: Any = SimpleNamespace(wrong=(("cause", "W_Q"),), findings=many)
    lines = list(annotated(judgement))
    assert len(lines) == 10
    assert lines[0] == "::error title=attncheck%3A wrong::cause: W_Q"
    assert lines[1] == "::error title=attncheck%3A verdicts::reason 0:%0A100%25, or so"
    assert lines[-1] == "::error title=attncheck::and 17 more reasons: see the summary"
    assert len(list(annotated(SimpleNamespace(wrong=(), findings=many[:10])))) == 10  # type: ignore[arg-type]
