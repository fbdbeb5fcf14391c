"""Keys of cases depend on what is described, not on modules, addresses or literals."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import EXACT_WIDTHS, RATE_WIDTHS
from attncheck.layers.program import Coordinatewise, Program, ProgramCase
from attncheck.looks.domains import fixed_programs
from attncheck.looks.examples import draw_examples
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.strategies import layers, program_cases
from tests.refusals import refused
from tests.stack_strategy import stacks


def test_a_field_that_comes_later_changes_no_key() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(AttentionLayer):
        dropout: float = 0.0

    layer = AttentionLayer(width=8, mask="causal")
    assert Later(width=8, mask="causal").key == layer.key
    assert Later(width=8, mask="causal", dropout=0.1).key != layer.key
    assert layer.replace(mask="none").key != layer.key


def test_no_module_is_named_in_what_programs_are_known_by() -> None:
    drawn = draw_examples(program_cases(RATE_WIDTHS, min_scores=1), 12, 0, "identity")
    for case in (*fixed_programs("fact1"), *drawn):
        text = json.dumps(case.to_dict())
        assert "attncheck" not in text
        assert "path" not in text
        assert type(case).from_dict(json.loads(text)) == case


def test_literals_and_comments_of_a_module_redraw_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[str]:
        cases = [
            *draw_examples(layers(), 20, 3, "literals"),
            *draw_examples(program_cases(EXACT_WIDTHS), 10, 3, "literals"),
            *draw_examples(stacks(max_entries=500), 5, 3, "literals"),
        ]
        numbers = st.lists(st.integers() | st.floats(), min_size=20).map(tuple)
        return [*(case.key for case in cases), *map(repr, draw_examples(numbers, 20, 3, "literals"))]

    before = drawn()
    file = tmp_path / "local_literals.py"
    file.write_text("# A comment.\nA, B, C = 12345, 0.7071, [104729, 1.618]\n", "utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    assert drawn() == before


def unnamed(function: Coordinatewise) -> ProgramCase:
    program = Program()
    program.nonlin(function, program.initial("h"))
    return program.at(8)


def test_functions_without_a_name_are_not_taken_for_each_other() -> None:
    one, other = unnamed(lambda x: np.tanh(x)), unnamed(lambda x: np.tanh(0.01 * x))
    assert one.key == other.key
    assert one != other
    assert one == one
    assert unnamed(np.tanh) == unnamed(np.tanh)
    run = Run.of(RunOptions(profile="smoke"))
    refused(lambda: run.items_on("fact1", [one, other]), "differs from another one only in a function without a name")


def test_no_address_in_memory_is_in_a_key() -> None:
    @dataclasses.dataclass(repr=False)
    class Scaled:
        factor: float

        def __call__(self, x: np.ndarray) -> np.ndarray:
            return self.factor * x

    assert unnamed(Scaled(2.0)).key == unnamed(Scaled(2.0)).key
    assert unnamed(functools.partial(Scaled(2.0))).key == unnamed(functools.partial(Scaled(2.0))).key
