"""Public bugs are found, right modules are not blamed, and the benchmark on both judges messages correctly."""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attncheck.frameworks.notes import asks, wrong
from benchmarks import wild_bugs
from benchmarks.wild_bugs import MODULES, WHOLE, Bug, Right, inspection, variants
from benchmarks.wild_bugs.variants import KINDS, VARIANTS, Mutant, Variant

EVERY = {**MODULES, **WHOLE}
SIZE: dict[str, Any] = {"make": object, "width": 8}
DECLARED: dict[str, Any] = SIZE | {"declared": {"query_std": 1.0}}
BUG = Bug(name="b", source="s", what="w", other=object, sentence=("W_Q", r"0\.707"), **DECLARED)
RIGHT = Right(name="r", **DECLARED)
LAYER, MUTANT = Variant(name="v", **SIZE), Mutant(name="m", kind="tiling", right=object, **SIZE)


class Report:
    def __init__(self, text: str = "", refusal: str = "", notes: tuple[Any, ...] = ()) -> None:
        self.text, self.refusal, self.notes = text, refusal, notes

    def __str__(self) -> str:
        return self.text

    def require(self, **declared: Any) -> None:
        if self.refusal:
            raise AssertionError(self.refusal)


def substitute(monkeypatch: pytest.MonkeyPatch, report: Report | None, compared: str = "") -> None:
    """Let inspections return a report, or fail."""
    inspect = {"inspect": lambda *_, **__: report} if report else {}
    monkeypatch.setattr(inspection, "ac", SimpleNamespace(**inspect))
    monkeypatch.setattr(inspection, "compared", lambda _: compared)


@pytest.mark.parametrize(
    ("report", "compared", "where", "told"),
    [
        (Report("mask: none\nW_Q: std 0.707"), "", "text", "0.707"),
        (Report("W_Q: 1.00", "query_std: W_Q is 0.707 where 1 is declared"), "", "require", "0.707"),
        (Report("W_Q: 1.00"), "W_Q: 0.707 against 1.00", "compare", "0.707"),
        (Report("W_Q: 1.00\nmask: none\nmap: softmax\nW_O: 0.707"), "", "", ""),
        (Report("W_Q: 1.00", notes=(wrong("the mask is odd"), asks("all is well"))), "", "", "the mask is odd"),
        (None, "", "", "text ended in AttributeError: "),
    ],
)
def test_a_bug_is_found_where_it_is_told(monkeypatch: Any, report: Any, compared: str, where: str, told: str) -> None:
    substitute(monkeypatch, report, compared)
    row = inspection.on_bug(BUG, draws=2)
    assert row.where == where
    assert told in row.told
    assert ("0.707" in row.told) == bool(where)


def test_right_layers_variants_and_mutants_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    models = importlib.import_module("benchmarks.models")
    rows: list[Any] = []
    for report in (
        Report(notes=(asks("scores have variance 1"),)),
        Report(notes=(wrong("W_Q is not drawn"),)),
        Report(notes=("nobody knows whether this blames",)),
        Report(refusal="query_std: 0.9"),
    ):
        substitute(monkeypatch, report)
        rows.append(inspection.on_right(RIGHT, draws=2, seed=len(rows)))
    assert [models.is_green(row) for row in rows] == [True, False, False, False]
    assert "False alarms: 3 of 4 inspections, at most 0.987 of them (95%)" in "\n".join(models.right_section(rows))
    layer = Right(name="r", **SIZE, said=("window of 4",), unsaid=("0 in the limit",))
    assert layer.misstated("mask: a window of 4") == ""
    assert layer.misstated("none; 0 in the limit") == "not said: window of 4; said: 0 in the limit"
    variant_rows: list[Any] = []
    mutants: list[Any] = []
    for text in ("wrong: KV heads are tiled\nwidth 8", "width 8\nwrong: KV heads are tiled", ""):
        substitute(monkeypatch, Report(text) if text else None)
        variant_rows.append(inspection.on_variant(LAYER, 2, len(mutants)))
        mutants.append(inspection.on_mutant(MUTANT, 2, len(mutants)))
    assert [row.wrong for row in variant_rows] == [("wrong: KV heads are tiled",), ("wrong: KV heads are tiled",), ()]
    assert [(row.named_first, row.named) for row in mutants] == [(True, True), (False, True), (False, False)]
    called = "3 random right modules. Called wrong: 2, at most 0.983 of them (95%). Not inspected: 1."
    assert called in "\n".join(models.variant_section(variant_rows))


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
    """Every eighth module of each framework, or all of them."""
    module = fixtures_of(name)
    names = [each.name for each in module.variants(0)]
    assert names == [each.name for each in module.variants(0)]
    assert len(set(names)) == len(names)
    for variant in module.variants(0)[:: 1 if ALL else 8]:
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
