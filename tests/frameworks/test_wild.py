"""Public bugs are found and right modules are not blamed."""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType

import pytest

from benchmarks import wild_bugs
from benchmarks.wild_bugs import MODULES, WHOLE, inspection, variants
from benchmarks.wild_bugs.variants import KINDS, VARIANTS

EVERY = {**MODULES, **WHOLE}
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
    """By a line of the report; one of the 180 mutants of three seeds is not inspected. A quarter of them, or all."""
    pytest.importorskip("torch")
    mutants = [mutant for mutant in variants.mutants(0) if mutant.kind == kind]
    assert len(mutants) == variants.PER_KIND
    rows = [inspection.on_mutant(mutant, draws=2, seed=0) for mutant in mutants[:: 1 if ALL else 4]]
    assert sum(row.named for row in rows) >= len(rows) - ALL, [row.first for row in rows]
