"""Every page of measurements is made at a tiny size, with all of its rows."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from benchmarks import all as every
from benchmarks import paper

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
def test_a_page_of_a_tiny_size_has_every_row(name: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_every_page_is_there() -> None:
    for name in every.PAGES:
        assert name == "models" or callable(importlib.import_module(f"benchmarks.{name}").page)
        text = (ROOT / "benchmarks" / f"{name}.md").read_text(encoding="utf-8")
        assert "Made at commit" in text
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.md")} == set(every.PAGES)
