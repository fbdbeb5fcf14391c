"""Public bugs are found, right modules are not blamed, and the benchmark on both judges messages correctly."""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import wild_bugs
from benchmarks.wild_bugs import MODULES, WHOLE, Bug, Right, inspection, variants
from benchmarks.wild_bugs.inspection import RightRow
from benchmarks.wild_bugs.variants import KINDS, VARIANTS, Mutant, Variant

EVERY = {**MODULES, **WHOLE}
SIZE: dict[str, Any] = {"make": object, "width": 8}
DECLARED: dict[str, Any] = SIZE | {"declared": {"query_std": 1.0}}
BUG = Bug(name="b", source="s", what="w", other=object, sentence=("W_Q", r"0\.707"), **DECLARED)
RIGHT = Right(name="r", **DECLARED)
LAYER, MUTANT = Variant(name="v", **SIZE), Mutant(name="m", kind="tiling", right=object, **SIZE)


class Note(str):
    """A sentence with its level."""

    level: str

    def __new__(cls, text: str, level: str) -> Note:
        note = super().__new__(cls, text)
        note.level = level
        return note


class Report:
    def __init__(self, text: str = "", refusal: str = "", notes: tuple[str, ...] = ()) -> None:
        self.text, self.refusal, self.notes = text, refusal, notes

    def __str__(self) -> str:
        return self.text

    def require(self, **declared: Any) -> None:
        if self.refusal:
            raise AssertionError(self.refusal)


@pytest.fixture
def models() -> ModuleType:
    """Return the page's module, which needs PyTorch."""
    pytest.importorskip("torch")
    return importlib.import_module("benchmarks.models")


def substitute(monkeypatch: pytest.MonkeyPatch, report: Report, compared: str = "") -> None:
    monkeypatch.setattr(inspection, "ac", SimpleNamespace(inspect=lambda *_, **__: report))
    monkeypatch.setattr(inspection, "compared", lambda _: compared)


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
    substitute(monkeypatch, Report("W_Q: 1.00", notes=(Note("the mask is odd", "wrong"), Note("all is well", "note"))))
    assert inspection.on_bug(BUG, draws=2).told == "the mask is odd"


def test_an_error_is_not_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def inspect(*_: object, **__: object) -> None:
        raise ValueError("W_Q 0.707\nis odd")

    monkeypatch.setattr(inspection, "ac", SimpleNamespace(inspect=inspect))
    monkeypatch.setattr(inspection, "compared", lambda _: "")
    row = inspection.on_bug(BUG, draws=2)
    assert not row.where
    assert row.told == "text ended in ValueError: W_Q 0.707 is odd"


def test_a_right_layer_is_green_without_blame(models: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[RightRow] = []
    for report in (
        Report(notes=(Note("scores have variance 1", "note"),)),
        Report(notes=(Note("W_Q is not drawn", "wrong"),)),
        Report(notes=("nobody knows whether this blames",)),
        Report(refusal="query_std: 0.9"),
    ):
        substitute(monkeypatch, report)
        rows.append(inspection.on_right(RIGHT, draws=2, seed=len(rows)))
    assert [models.is_green(row) for row in rows] == [True, False, False, False]
    assert "query_std: 0.9" in rows[-1].refused
    page = "\n".join(models.right_section(rows))
    assert "False alarms: 3 of 4 inspections, at most 0.987 of them (95%)" in page
    assert "| r     | 1    | W_Q is not drawn " in page
    assert "| r     | 3    | AssertionError: query_std: 0.9 " in page


def test_what_a_right_layer_must_and_must_not_get() -> None:
    layer = Right(name="r", make=object, width=8, said=("window of 4",), unsaid=("0 in the limit",))
    assert layer.misstated("mask: a window of 4") == ""
    assert layer.misstated("none; 0 in the limit") == "not said: window of 4; said: 0 in the limit"


def test_variants_called_wrong_and_mutants_named(models: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    substitute(monkeypatch, Report("wrong: KV heads are tiled\nwidth 8"))
    rows, mutants = [inspection.on_variant(LAYER, 2, 0)], [inspection.on_mutant(MUTANT, 2, 0)]
    substitute(monkeypatch, Report("width 8\nwrong: KV heads are tiled"))
    mutants.append(inspection.on_mutant(MUTANT, 2, 1))
    substitute(monkeypatch, Report("width 8\nall is well"))
    rows.append(inspection.on_variant(LAYER, 2, 1))
    monkeypatch.setattr(inspection, "ac", None)
    rows.append(inspection.on_variant(LAYER, 2, 2))
    mutants.append(inspection.on_mutant(MUTANT, 2, 2))
    assert [row.wrong for row in rows] == [("wrong: KV heads are tiled",), (), ()]
    assert [(row.named_first, row.named) for row in mutants] == [(True, True), (False, True), (False, False)]
    section = "\n".join(models.variant_section(rows))
    assert "3 random right modules. Called wrong: 1, at most 0.865 of them (95%). Not inspected: 1." in section
    assert "| v     | 2    | AttributeError" in section
    assert "| tiling | 3       | 1           | 2              | m: width 8" in "\n".join(models.mutant_section(mutants))


def test_configurations_are_the_same_for_the_same_seed() -> None:
    first = variants.configs(0)
    assert first == variants.configs(0)
    assert first != variants.configs(1)
    assert {config.core for config in first} == set(variants.CORES)
    for axis, choices in variants.CHOICES.items():
        drawn = {getattr(config, axis) for seed in range(3) for config in variants.configs(seed)}
        assert drawn >= set(choices), axis


# The modules themselves ---------------------------------------------------------------------------

ALL = os.environ.get("ATTNCHECK_TESTS") == "all"
NOTHING = """\
width 64, 4 heads of 16, 8 draws
W_Q, W_K, W_V, W_O: std 1.00/√fan-in [0.99, 1.01], uniform; biases zero
mask: causal; map: softmax over the keys; scale: 1/√head_dim (0.250); dropout: none; groups (0, 0, 1, 1)
scores: variance 1.00, temperature 1.00, entropy 1.61; outputs: excess kurtosis 0.9
two calls on one input agree, error 3e-7
"""


def fixtures_of(name: str) -> ModuleType:
    for framework in (EVERY | VARIANTS)[name]:
        pytest.importorskip(framework)
    return importlib.import_module(f"benchmarks.wild_bugs.{name}")


@pytest.mark.parametrize("name", EVERY)
def test_every_bug_is_found_and_no_right_layer_is_blamed(name: str) -> None:
    """In numbers where it is one: the sentence of a fixture has its scale, mask or matrix."""
    fixtures = fixtures_of(name)
    for bug in getattr(fixtures, "BUGS", ()):
        found = inspection.on_bug(bug, draws=4)
        assert found.where, f"{bug.name}: {found.told}"
        assert wild_bugs.line_told(NOTHING, bug.sentence) is None, bug.name
    for right in getattr(fixtures, "RIGHT", ()):
        row = inspection.on_right(right, draws=4, seed=0)
        assert (row.blames, row.refused) == ((), ""), right.name


def test_kinds_of_mutants_are_none_of_a_right_layer() -> None:
    assert not [kind for kind, pattern in KINDS.items() if re.search(pattern, NOTHING)]


@pytest.mark.parametrize("name", VARIANTS)
def test_right_modules_are_not_called_wrong(name: str) -> None:
    """Every fourth module of each framework, or all of them."""
    module = fixtures_of(name)
    names = [each.name for each in module.variants(0)]
    assert names == [each.name for each in module.variants(0)]
    assert len(set(names)) == len(names)
    for variant in module.variants(0)[:: 1 if ALL else 4]:
        row = inspection.on_variant(variant, draws=2, seed=0)
        assert (row.wrong, row.failed) == ((), ""), variant.name


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_are_named(kind: str) -> None:
    """By a line of the report; one of the 180 mutants of three seeds is not inspected. Half of them, or all."""
    pytest.importorskip("torch")
    mutants = [mutant for mutant in variants.mutants(0) if mutant.kind == kind]
    assert len(mutants) == variants.PER_KIND
    rows = [inspection.on_mutant(mutant, draws=2, seed=0) for mutant in mutants[:: 1 if ALL else 2]]
    assert sum(row.named for row in rows) >= len(rows) - ALL, [row.first for row in rows]
