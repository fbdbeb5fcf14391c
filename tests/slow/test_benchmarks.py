"""Every page of measurements is made at a tiny size, with all of its rows."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import msgspec
import pytest

from attncheck.runs.parts import read_run
from benchmarks import all as every
from benchmarks import evidence, paper, same

ROOT = Path(__file__).resolve().parents[2]
#: Headings of sections without a row below.
HEADINGS = {
    "evidence": ("Pools",),
    "models": ("Said to be wrong", "All models", "Right layers", "Random right layers", "Mutations"),
}
ROWS = {
    "evidence": (
        r"scores\.law +\| \d+ ",
        r"netsor\.scale +\| \d+ ",
        r"collapsed +\| [\d,]+ ",
        r"smoke +\| 0 +\| consistent ",
        r"`exactness\.output` +\| [\d.]+ ",
        r"scores_over_n +\| outputs +\| `\w+\.\w+` +\| [\d.]+ +\| > 99.9%",
    ),
    "speed": (
        r"collapsed against direct, n = 16 .*\| (?:met|missed) ",
        r"matrix-free against direct, n = 64 .*\| (?:met|missed) ",
        r"collapsed against s·n normals into a buffer, n = 64 .*\| (?:met|missed) ",
        r"exponent of the cost of collapsed, n = 16, 32, 64 ",
        r"limit cdf, 401 points, a new law ",
        r"768 +\| 32 +\| 12 +\| 64 ",
    ),
    "first_line": (r"\[FanOfHead\]\(https://github.com/.*\| yes ",),
    "paper": (
        r"scores over n collapse to 0 ",
        r"KL of y, n = 1,024 ",
        *(rf"y, s = 4, H = 2 +\| {metric} +\| -[\d.]+ " for metric in paper.METRICS),
    ),
    "models": (
        r"transformers: mobilevit +\| scales of BatchNorm2d are drawn around 0.*\| mistake in a release ",
        r"transformers: gpt2 +\| [1-9]",
        r".* \| yes, \w+ +\| ",
        r"scores over √d in a model of μP +\| `blocks\.0\.attention\.scores`, at initialisation +\| (?:yes|no) ",
        r"of one normal number +(?:\| [\d.]+ +){3}\|$",
        r"0\.5 +(?:\| \d+ +){2}\|$",
    ),
}


@pytest.mark.parametrize("name", every.PAGES)
def test_a_page_of_a_tiny_size_has_every_row(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "evidence":  # the fixture makes the page's only run
        made: Path = request.getfixturevalue("record")
        monkeypatch.setattr(evidence, "run_record", lambda *arguments: made)
    if name == "models":
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    committed = (ROOT / "benchmarks" / f"{name}.md").read_bytes()
    assert every.main([name, "--tiny"]) == 0
    text = capsys.readouterr().out
    assert str(ROOT) not in text
    for heading in HEADINGS.get(name, ()):
        assert re.search(rf"^##+ {re.escape(heading)}", text, re.MULTILINE), heading
    for row in ROWS[name]:
        assert re.search(rf"^\| {row}", text, re.MULTILINE), row
    assert re.search(r"^Made at commit \w+(?:-dirty)? in \d+ s with attncheck .* cores\.$", text, re.MULTILINE)
    assert (ROOT / "benchmarks" / f"{name}.md").read_bytes() == committed


def test_pages_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(every, "ROOT", tmp_path)
    monkeypatch.setattr(paper, "page", lambda tiny: ["# The paper", f"tiny: {tiny}"])
    assert every.main(["paper"]) == 0
    text = (tmp_path / "benchmarks" / "paper.md").read_text(encoding="utf-8")
    made = "`python benchmarks/all.py paper` makes this page."
    assert text.startswith(f"# The paper\n\n{made}\n\ntiny: False\n\nMade at commit unknown in 0 s with attncheck ")
    assert capsys.readouterr().out == text.splitlines()[-1] + "\n"
    with pytest.raises(SystemExit):
        every.main(["another"])


def test_every_page_is_there() -> None:
    for name in every.PAGES:
        assert name == "models" or callable(importlib.import_module(f"benchmarks.{name}").page)
        text = (ROOT / "benchmarks" / f"{name}.md").read_text(encoding="utf-8")
        assert "Made at commit" in text
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.md")} == set(every.PAGES)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evidence.run_record("smoke", 0, tmp_path_factory.mktemp("runs"), evidence.TINY)


def test_what_a_run_could_have_seen(record: Path) -> None:
    found = {name: values for name, *values in evidence.effects(record)}
    for check in ("exactness.score_energy", "exactness.output"):
        median, worst, together = found[check]
        assert 0.0 < together < median <= worst


def test_looks_of_whole_runs_are_counted(record: Path) -> None:
    single = [len(result.p_values) for result in evidence.results_of(record) if result.case.get("of") is None]
    row = evidence.run_row("smoke", 0, record)
    assert row[:3] == ("smoke", "0", "consistent")
    further = "/".join(str(single.count(looks)) for looks in (2, 3, 4))
    assert row[3].startswith(f"{len(single):,}: {further} (")
    summary = evidence.run_summary([row, row])
    assert summary.startswith("2 runs of the literal simulator against the properties, 0 violated: ")
    assert "at most 0.776 (95%" in summary
    assert "1 violated: " in evidence.run_summary([row, (*row[:2], "violated")])


def test_records_are_compared(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert same.main([str(record), str(record)]) == 0
    assert "Nothing differs" in capsys.readouterr().out
    old = read_run(record).by_id
    key, result = next(iter(old.items()))
    new = {**old, key: msgspec.structs.replace(result, effect=2.0, verdict="violated")}
    found = same.differences(old, new)
    assert [line.partition(":")[0] for line in found["with another verdict"]] == [key]
    assert "-> 2.0" in found["with other numbers"][0]
    missing = same.differences(old, {name: line for name, line in old.items() if name != key})
    assert missing["only in the old record"] == [key]
