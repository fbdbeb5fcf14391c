"""The command, the table, JSON and the page."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.report.svg import BAD

MODULE = """
import numpy as np


class Layer:
    def __init__(self, width, rng, power=0.5):
        self.x, self.rng, self.power = rng.standard_normal((32, width)), rng, power
        self.w = rng.standard_normal((width, 64)) / width**power

    def taps(self):
        return {"in": self.x, "out": self.x @ self.w}

    def step(self):
        self.w = self.w * 1.5


def wrong(width, rng):
    return Layer(width, rng, power=0.0)


table = {"in": 0, "out": {"init": 0, "change": 0}}
never = {"in": "at most 0", "out": {"change": (-0.5, 0)}}
"""
SMALL = ("--widths", "16, 32,64", "--seeds", "128", "--expect", "over_widths:table")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "over_widths.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "over_widths", raising=False)


def test_right_and_wrong_models_have_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "over_widths:Layer", *SMALL]) == ExitCode.CONSISTENT
    said = capsys.readouterr().out
    assert said.startswith(
        "CONSISTENT: 4 exponents examined, widths 16 to 64, 128 to 181 seeds each\n\nat initialisation\ntap"
    )
    assert "change after 2 steps" in said
    assert main(["widths", "over_widths:wrong", *SMALL]) == ExitCode.VIOLATED
    said = capsys.readouterr().out
    assert re.search(
        r"^  first:    out at initialisation: n\^\+0\.[45]\d, from .* to .*; predicted 0$", said, re.MULTILINE
    )
    assert main(["widths", "over_widths:Layer", *SMALL[:2], "--seeds", "2", *SMALL[4:]]) == ExitCode.INCONCLUSIVE
    headline, names = capsys.readouterr().out.splitlines()[:2]
    assert re.search(r"; seeds=(\d+) \(--seeds \1\) would decide (\d) of \2 open exponents, in about \d+ s$", headline)
    assert re.match(r"  open: +(in|out)", names)


def test_json_holds_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "over_widths:wrong", *SMALL, "--steps", "1", "--json"]) == ExitCode.VIOLATED
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "violated"
    assert [(row["name"], row["steps"]) for row in told["rows"]] == [("in", 0), ("out", 0), ("in", 1), ("out", 1)]
    assert told["rows"][1]["verdict"] == "violated"
    assert len(told["rows"][1]["p_values"]) == 3
    assert told["rows"][1]["exponent"] == pytest.approx(0.5, abs=0.1)
    assert told["rows"][2]["verdict"] == "not examined"
    assert told["rows"][2]["notes"] == ["no change beyond rounding"]


def test_the_page_has_pictures_with_what_is_violated_in_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {}
    for name in ("Layer", "wrong"):
        main(["widths", f"over_widths:{name}", *SMALL, "--report", f"{name}.html"])
        pages[name] = (tmp_path / f"{name}.html").read_text("utf-8")
    plots = {
        name: [base64.b64decode(each).decode() for each in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)]
        for name, page in pages.items()
    }
    assert [len(each) for each in plots.values()] == [3, 3]
    red = f"stroke: ?{BAD}"
    assert not any(re.search(red, each) for each in plots["Layer"])
    assert all(re.search(red, each) for each in plots["wrong"])
    assert "1 of them are violated: out grows as n^+0." in pages["wrong"]
    assert [">out<" in each for each in plots["wrong"]] == [True] * 3  # the name of the red line
    assert 'class="box violated"' in pages["wrong"]
    assert re.search("<h2[^>]*>out at initialisation: n\\^", pages["wrong"])
    assert 'class="chip violated"' not in pages["Layer"]
    capsys.readouterr()
