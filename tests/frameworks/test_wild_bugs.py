"""Each public bug is found in its module by an inspection, and nothing in the right ones."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from benchmarks import wild_bugs
from benchmarks.wild_bugs import MODULES, WHOLE, inspection

DRAWS = 8
EVERY = {**MODULES, **WHOLE}


def fixtures_of(name: str) -> ModuleType:
    for framework in EVERY[name]:
        pytest.importorskip(framework)
    return importlib.import_module(f"benchmarks.wild_bugs.{name}")


@pytest.mark.parametrize("name", EVERY)
def test_every_bug_is_found(name: str) -> None:
    """In numbers where it is one: the sentence of a fixture has its scale, mask or matrix."""
    for bug in getattr(fixtures_of(name), "BUGS", ()):
        row = inspection.on_bug(bug, DRAWS)
        assert row.where, f"{bug.name}: {row.told}"


@pytest.mark.parametrize("name", EVERY)
def test_right_layers_are_what_is_declared(name: str) -> None:
    for right in getattr(fixtures_of(name), "RIGHT", ()):
        row = inspection.on_right(right, DRAWS, seed=0)
        assert not row.blames, right.name
        assert not row.refused, right.name


NOTHING = """\
width 64, 4 heads of 16, 8 draws
W_Q, W_K, W_V, W_O: std 1.00/√fan-in [0.99, 1.01], uniform; biases zero
mask: causal; map: softmax over the keys; scale: 1/√head_dim (0.250); dropout: none; groups (0, 0, 1, 1)
scores: variance 1.00, temperature 1.00, entropy 1.61; outputs: excess kurtosis 0.9
two calls on one input agree, error 3e-7
"""


@pytest.mark.parametrize("name", EVERY)
def test_sentences_of_bugs_are_none_of_a_right_layer(name: str) -> None:
    for bug in getattr(fixtures_of(name), "BUGS", ()):
        assert wild_bugs.line_told(NOTHING, bug.sentence) is None, bug.name


def test_every_module_has_fixtures_of_its_own() -> None:
    fixtures = [*(bug.name for bug in wild_bugs.bugs()), *(layer.name for layer in wild_bugs.right())]
    assert len(set(fixtures)) == len(fixtures)
    here = [name for name in EVERY if wild_bugs.installed(name)]
    assert bool(fixtures) == bool(here)
