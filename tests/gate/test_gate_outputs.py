"""Gate output as JSON and Markdown; long records are streamed."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from attncheck.layers.attention import AttentionLayer

from .conftest import BASELINE_SEED, CHECKS, RUN_SEED, Gated, Sheets, make_sheet


def outputs(tmp_path: Path, sheets: Sheets, gated: Gated) -> tuple[int, Path, Path]:
    paths = sheets[0].write(tmp_path / "run.jsonl"), sheets[1].write(tmp_path / "base.jsonl")
    summary, document = tmp_path / "a" / "s.md", tmp_path / "g.json"
    code, _ = gated(*paths, "--summary", str(summary), "--json", str(document))
    return code, summary, document


def test_json_says_everything(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    sheets[0].violate("scores.scale")
    code, _, document = outputs(tmp_path, sheets, gated)
    found = json.loads(document.read_text(encoding="utf-8"))
    assert found["exit_code"] == code == 1
    assert found["verdict"] == "violated"
    assert found["sentence"].startswith("VIOLATED: my:simulator, 8 violated, 32 of 32 planned results examined")
    assert found["sentence"].endswith(f" Compared with {tmp_path / 'base.jsonl'}.")
    assert found["findings"] == [
        {"part": "verdicts", "verdict": "violated", "text": "8 results are violated: scores.scale"}
    ]
    assert found["wrong"][-1]["label"] == "replay"
    assert found["wrong"][-1]["text"].startswith("attncheck replay ")
    assert found["notes"] == ["seed is 7, 0 in the baseline"]
    assert found["detectable"] == []


def test_summary_begins_with_verdict_cause_and_number(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    run, _ = sheets
    run.violate("scores.scale")
    run.change("scores.scale", diagnosis=["score variance 1.19 [1.10, 1.27] times the declared"])
    run.causes = ["W_Q: 1.09 times the declared standard deviation", "W_K: 1.09 times the declared standard deviation"]
    _, summary, _ = outputs(tmp_path, sheets, gated)
    text = summary.read_text(encoding="utf-8").replace("\\", "")
    lines = [line for line in text.splitlines() if line]
    assert lines[:4] == [
        "## attncheck: violated",
        f"- **cause**: {run.causes[0]}",
        f"- **or**: {run.causes[1]}",
        "- **observed**: score variance 1.19 [1.10, 1.27] times the declared",
    ]
    assert lines[4].startswith("- **first**: scores.scale on 8 of 8 layers: ratio ")
    smallest = min(run.results, key=lambda result: result.case["width"] * result.case["seq_len"])
    assert lines[5] == f"- **layer**: {AttentionLayer.from_dict(smallest.case).describe()}, the smallest of them"
    command = f"attncheck replay {tmp_path}/run.jsonl scores.scale@{smallest.id[-12:]} --trust my"
    assert lines[6] == f"<pre>{command}</pre>"
    assert lines[7] == "- **verdicts**: 8 results are violated: scores.scale"
    assert lines[8].startswith("VIOLATED: my:simulator, 8 violated, 32 of 32 planned results examined")


def test_summary_is_one_screen_without_ids(tmp_path: Path, gated: Gated, sheets: Sheets) -> None:
    run, base = sheets
    for number, check in enumerate(CHECKS):
        run.change(check, mde=1.1 + 0.01 * number, **{"p_values": [0.999]})
        base.change(check, effect=0.9, low=0.895, high=0.905)
    run.drop(run.planned[0].id)
    run.results.append(run.results[-1])
    run.close = False
    run.head["versions"] = {f"library {number}": "1.0" for number in range(50)}
    base.head["versions"] = {f"library {number}": "2.0" for number in range(50)}
    _, summary, document = outputs(tmp_path, sheets, gated)
    text = summary.read_text(encoding="utf-8")
    assert len(json.loads(document.read_text(encoding="utf-8"))["findings"]) == 12
    assert text.count("- **") == 8
    assert "- and 4 more" in text
    assert not re.search("[0-9a-f]{12}", text)
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 300


@pytest.mark.parametrize("option", ["--summary", "--json"])
@pytest.mark.parametrize(
    ("path", "text"),
    [("x/../run.jsonl", "is also the path of"), ("x/../base.jsonl", "is also the path of"), ("", "is a folder")],
)
def test_nothing_is_written_over_what_is_read_or_a_folder(
    tmp_path: Path, gated: Gated, sheets: Sheets, option: str, path: str, text: str
) -> None:
    run, base = sheets[0].write(tmp_path / "run.jsonl"), sheets[1].write(tmp_path / "base.jsonl")
    before = [record.read_bytes() for record in (run, base)]
    code, output = gated(run, base, option, str(tmp_path / path))
    assert code == 2
    assert text in output
    assert [record.read_bytes() for record in (run, base)] == before


def test_long_records_take_little_more_than_their_text(tmp_path: Path, gated: Gated) -> None:
    """Thousands of lines, and as many in a whole baseline, take at most twice the text of both."""
    short = [make_sheet(seed).write(tmp_path / f"short {seed}.jsonl") for seed in (RUN_SEED, BASELINE_SEED)]
    assert gated(*short)[0] == 0  # with all imports of the gate
    layers = [AttentionLayer(width=1 + index % 100, seq_len=1 + index // 100) for index in range(500)]
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
    assert peak < 2.0 * sum(path.stat().st_size for path in paths)
