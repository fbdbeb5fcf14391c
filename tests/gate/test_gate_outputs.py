"""What the gate writes: JUnit XML, JSON, Markdown; and that long records are streamed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import msgspec

from attncheck.layers.attention import AttentionLayer

if TYPE_CHECKING:
    from tests.gate.conftest import Sheet

BASELINE_SEED, RUN_SEED = 0, 7
Gated = Callable[..., tuple[int, str]]
MakeSheet = Callable[..., "Sheet"]

HOSTILE = "<script>alert(1)</script> | `x` **b** ]]> & \x00\x1b[31m \ud7ff\n# heading"


def outputs(tmp_path: Path, run: Sheet, base: Sheet, gated: Gated) -> tuple[int, Path, Path, Path]:
    paths = run.write(tmp_path / "run.jsonl"), base.write(tmp_path / "base.jsonl")
    junit, summary, document = tmp_path / "a" / "j.xml", tmp_path / "s.md", tmp_path / "g.json"
    options = ("--junit", str(junit), "--summary", str(summary), "--json", str(document))
    code, _ = gated(*paths, *options)
    return code, junit, summary, document


def test_junit_has_a_case_for_each_property_and_layer(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run = make_sheet(RUN_SEED)
    run.violate("scores.scale")
    crashed_unit = run.planned[-1].unit
    run.drop(lambda each: each.unit == crashed_unit)
    run.excuse("outputs.energy")
    _, junit, _, _ = outputs(tmp_path, run, make_sheet(BASELINE_SEED), gated)
    suite = ElementTree.parse(junit).getroot()[0]
    units = [case for case in suite if case.get("classname") != "gate"]
    assert len(units) == len({planned.unit for planned in run.planned}) == 3 * 8
    tags = [(case.get("classname"), child.tag) for case in units for child in case]
    assert tags.count(("scores", "failure")) == 8
    assert tags.count(("outputs", "skipped")) == 8
    assert tags.count(("draws", "error")) == 1
    assert suite.get("failures") == str(len(suite.findall("testcase/failure")))
    assert suite.get("tests") == str(len(suite))
    assert all("n=" in str(case.get("name")) for case in units if case.get("classname") == "scores")


def test_json_says_everything(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run = make_sheet(RUN_SEED)
    run.violate("scores.scale")
    code, _, _, document = outputs(tmp_path, run, make_sheet(BASELINE_SEED), gated)
    found = json.loads(document.read_text(encoding="utf-8"))
    assert found["exit_code"] == code == 1
    assert found["verdict"] == "violated"
    assert found["run"]["seed"] == RUN_SEED
    assert found["baseline"]["seed"] == BASELINE_SEED
    assert len(found["results"]) == found["claims"]["scores"]["violated"] == 8
    assert {finding["part"] for finding in found["findings"]} == {"verdicts"}


def test_summary_is_short_and_leads_with_the_verdict(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run = make_sheet(RUN_SEED)
    run.violate("scores.scale")
    _, _, summary, _ = outputs(tmp_path, run, make_sheet(BASELINE_SEED), gated)
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("## attncheck: violated\n\nVIOLATED: my:simulator, 32 of 32 planned results")
    assert f"attncheck replay {tmp_path}/run.jsonl scores.scale@" in text.replace("\\", "")
    assert len(text.splitlines()) < 60


def test_hostile_names_stay_text(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run = make_sheet(RUN_SEED)
    run.head["subject"] = HOSTILE
    run.violate("scores.scale", text=HOSTILE, claim=HOSTILE)
    run.excuse("scores.law", HOSTILE)
    code, junit, summary, document = outputs(tmp_path, run, make_sheet(BASELINE_SEED), gated)
    assert code == 1
    (failure, *_) = ElementTree.parse(junit).getroot().findall("*/testcase[@classname='scores']/failure")
    assert "<script>alert(1)</script>" in str(failure.text)
    text = summary.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "\n# heading" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "script" in line]
    assert {row.replace("\\|", "").count("|") for row in rows} <= {5, 6}
    assert HOSTILE in json.loads(document.read_text(encoding="utf-8"))["run"]["subject"]


def test_outputs_that_cannot_be_written_are_refused(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    run, base = (make_sheet(seed).write(tmp_path / f"{seed}.jsonl") for seed in (RUN_SEED, BASELINE_SEED))
    code, said = gated(run, base, "--junit", str(tmp_path))
    assert code == 2
    assert f"junit={tmp_path}: cannot be written" in said


def test_long_records_are_streamed(tmp_path: Path, gated: Gated, make_sheet: MakeSheet) -> None:
    """10⁶ lines of two records take 500 MiB at most; here a two-hundredth, in less than half of what its text takes."""
    short = [make_sheet(seed).write(tmp_path / f"short {seed}.jsonl") for seed in (RUN_SEED, BASELINE_SEED)]
    assert gated(*short)[0] == 0  # whatever the gate imports is imported
    layers = [AttentionLayer(width=1 + index % 100, seq_len=1 + index // 100) for index in range(1_250)]
    paths = []
    for seed in (RUN_SEED, BASELINE_SEED):
        sheet = make_sheet(seed, layers)
        sheet.results = [msgspec.structs.replace(result, hint="x" * 2_000) for result in sheet.results]
        paths.append(sheet.write(tmp_path / f"{seed}.jsonl"))
    tracemalloc.start()
    try:
        code, _ = gated(*paths)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert code == 0
    assert peak < 0.5 * paths[0].stat().st_size
