"""The benchmark on public bugs judges inspection messages correctly, on substitutes."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.wild_bugs import Bug, Right, inspection
from benchmarks.wild_bugs.inspection import BugRow, RightRow

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "wild.py"
BUG = Bug(
    name="b",
    source="s",
    what="w",
    make=object,
    other=object,
    width=8,
    declared={"query_std": 1.0},
    sentence=("W_Q", r"0\.707"),
)
RIGHT = Right(name="r", make=object, width=8, declared={"query_std": 1.0})


class Note(str):
    """A sentence, and whether it reports an error."""

    blames: bool

    def __new__(cls, text: str, blames: bool) -> Note:
        note = super().__new__(cls, text)
        note.blames = blames
        return note


class Report:
    def __init__(self, text: str = "", refusal: str = "", notes: tuple[str, ...] = ()) -> None:
        self.text, self.refusal, self.notes = text, refusal, notes
        query = SimpleNamespace(std=0.7071, low=0.70, high=0.71, law="uniform", laws=("uniform",))
        self.weights = {"query": query}
        self.theory = SimpleNamespace(temperature=2.0, score_variance=0.25, entropy=None)
        self.forward = SimpleNamespace(map="softmax", mask="none", scale=0.25, error=3e-7)

    def __str__(self) -> str:
        return self.text

    def require(self, **declared: Any) -> None:
        if self.refusal:
            raise AssertionError(self.refusal)


@pytest.fixture
def wild() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_wild", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def substitute(monkeypatch: pytest.MonkeyPatch, report: Report, compared: str = "") -> None:
    offered = SimpleNamespace(inspect=lambda *_, **__: report, compare=lambda *_, **__: compared)
    monkeypatch.setattr(inspection, "ac", offered)


@pytest.mark.parametrize(
    ("report", "compared", "where"),
    [
        (Report("mask: none\nW_Q: std 0.707"), "", "text"),
        (Report("W_Q: 1.00", "query_std: W_Q is 0.707 where 1 is declared"), "", "require"),
        (Report("W_Q: 1.00"), "W_Q: 0.707 against 1.00", "compare"),
        (Report("W_Q: 1.00\nmask: none\nmap: softmax\nW_O: 0.707"), "", ""),
    ],
)
def test_a_bug_is_found_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, report: Report, compared: str, where: str
) -> None:
    substitute(monkeypatch, report, compared)
    row = inspection.on_bug(BUG, draws=2)
    assert row.where == where
    assert ("0.707" in row.told) == bool(where)


def test_what_was_said_in_place_of_the_bug_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    substitute(monkeypatch, Report("W_Q: 1.00", notes=(Note("the mask is odd", True), Note("all is well", False))))
    assert inspection.on_bug(BUG, draws=2).told == "the mask is odd"


def test_an_error_is_not_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect(*_: object, **__: object) -> None:
        raise ValueError("W_Q 0.707\nis odd")

    monkeypatch.setattr(inspection, "ac", SimpleNamespace(inspect=inspect, compare=lambda *_, **__: ""))
    row = inspection.on_bug(BUG, draws=2)
    assert not row.where
    assert row.told == "text ended in ValueError: W_Q 0.707 is odd"


def test_a_right_layer_is_green_without_blame(wild: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[RightRow] = []
    for report in (
        Report(notes=(Note("scores have variance 1", False),)),
        Report(notes=(Note("W_Q is not drawn", True),)),
        Report(notes=("nobody knows whether this blames",)),
        Report(refusal="query_std: 0.9"),
    ):
        substitute(monkeypatch, report)
        rows.append(inspection.on_right(RIGHT, draws=2, seed=len(rows)))
    assert [wild.is_green(row) for row in rows] == [True, False, False, False]
    assert "query_std: 0.9" in rows[-1].refused
    page = wild.right_section(rows)
    assert "False alarms: 3 of 4 inspections, at most 0.987 of them (95%)" in page
    assert "| r     | 1 of 4 | 2                | 1       | W_Q is not drawn |" in page


def test_the_zoo_shows_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    substitute(monkeypatch, Report())
    cells = dict(zip(inspection.ZOO_HEADER[1:], inspection.on_zoo(RIGHT, draws=2).cells, strict=False))
    assert cells["W_Q"] == "0.707 [0.700, 0.710]"
    assert cells["W_K"] == cells["entropy"] == cells["excess kurtosis"] == "–"
    assert (cells["law"], cells["mask"], cells["scale"], cells["error"]) == ("uniform", "none", "0.25", "3.0e-07")


def test_rows_that_are_kept_are_not_made_again(
    wild: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    substitute(monkeypatch, Report("W_Q 0.707"))
    monkeypatch.setattr(wild.wild_bugs, "bugs", lambda: (BUG,))
    monkeypatch.setattr(wild.wild_bugs, "right", lambda: (RIGHT,))
    monkeypatch.setattr(wild.wild_bugs, "zoo", lambda: ())
    given: dict[str, Any] = {"quick": False, "draws": 2, "environment": "new", "old": None, "resume": tmp_path / "rows"}
    first = list(wild.inspected(argparse.Namespace(right=2, **given)))
    assert [type(row) for row in first] == [BugRow, RightRow, RightRow]
    substitute(monkeypatch, Report("nothing", refusal="all of it"))
    again = list(wild.inspected(argparse.Namespace(right=3, **given)))
    assert again[:3] == first
    assert [row.refused for row in again[3:]] == ["AssertionError: all of it"]
    assert len((tmp_path / "rows").read_bytes().splitlines()) == 4


def test_another_interpreter_that_fails_leaves_rows(wild: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Bug(name="o", source="s", what="w", make=object, width=8, sentence=("x",), environment="old")
    monkeypatch.setattr(wild.wild_bugs, "bugs", lambda: (BUG, old))
    rows = wild.elsewhere(argparse.Namespace(old="/no/such/python", draws=2))
    assert [row.name for row in rows] == ["o"]
    assert rows[0].told.startswith("not inspected: FileNotFoundError")
    assert "not found: not inspected: FileNotFoundError" in wild.bug_section(rows)
