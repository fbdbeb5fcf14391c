"""Keys survive moves and renames, as streams and digests depend on them."""

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

from attncheck._lib.errors import InputError
from attncheck._lib.streams import given_fields
from attncheck.checks import registry
from attncheck.checks.registry import EVERY_CHECK, EVERY_PROPERTY, checks_of, property_key
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.program import Coordinatewise, Program, ProgramCase
from attncheck.layers.stack import AttentionStack
from attncheck.looks.domains import domain_of, fixed_programs
from attncheck.looks.examine import run_item
from attncheck.looks.examples import draw_examples
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.profiles import ANCHORS, REGIME_ANCHORS
from attncheck.records.schema import Result, run_digest
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.strategies import layers, stacks
from attncheck.subject import Subject, collapsed

# Issued keys. A renamed check keeps its own, `key="the first name"`; a removed one leaves its line here. `python
# tests/test_identity.py` adds new keys, and removes none.
KEYS = Path(__file__).with_name("keys.json")


def given_keys() -> dict[str, dict[str, str]]:
    """Return the keys of checks, and those of cases by description."""
    programs = {case.describe(): case for name in ("fact1", "netsor") for case in fixed_programs(name)}
    examined = {layer.describe(): layer for layer in (*ANCHORS, *REGIME_ANCHORS)}
    deep = AttentionStack(layer=ANCHORS[0], depth=2, activations=("relu", "tanh"), residual=True)
    return {
        "checks": {check.key: property_key(check.property_name) for check in EVERY_CHECK},
        "layers": {words: layer.key for words, layer in examined.items()},
        "programs": {words: case.key for words, case in programs.items()},
        "stacks": {deep.describe(): deep.key},
    }


def test_no_key_that_was_given_away_has_changed() -> None:
    frozen = json.loads(KEYS.read_text("utf-8"))
    for kind, found in given_keys().items():
        assert found == {words: frozen[kind].get(words) for words in found}, kind


def test_keys_tell_checks_and_properties_apart() -> None:
    assert len({check.key for check in EVERY_CHECK}) == len(EVERY_CHECK)
    assert len({property_key(name) for name in EVERY_PROPERTY}) == len(EVERY_PROPERTY)
    for check in EVERY_CHECK:
        assert check.key.partition(".")[0] == property_key(check.property_name)


def test_a_field_that_comes_later_changes_no_key() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(AttentionLayer):
        dropout: float = 0.0
        mapping: str = dataclasses.field(default="softmax", metadata={"key": "attention_map_2"})

    layer = AttentionLayer(width=8, mask="causal")
    assert Later(width=8, mask="causal").key == layer.key
    assert Later(width=8, mask="causal", dropout=0.1).key != layer.key
    assert given_fields(Later(width=8, mapping="relu")) == {"width": 8, "attention_map_2": "relu"}
    assert layer.replace(mask="none").key != layer.key


def test_no_module_is_named_in_what_programs_are_known_by() -> None:
    drawn = draw_examples(domain_of("theorem1").strategy("theorem1"), 12, 0, "identity")
    for case in (*fixed_programs("fact1"), *drawn):
        text = json.dumps(case.to_dict())
        assert "attncheck" not in text
        assert "path" not in text
        assert type(case).from_dict(json.loads(text)) == case


def results_of(name: str, layer: AttentionLayer) -> list[Result]:
    return run_item(Item(name, layer), Subject.of(collapsed), 0, Cost(2000, 1e-3, 0.9))


def test_a_property_that_is_renamed_draws_what_it_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = results_of("non_gaussianity", ANCHORS[1])
    renamed = tuple(
        dataclasses.replace(check, name=check.name.replace("non_gaussianity", "renamed"), null="In other words.")
        for check in checks_of("non_gaussianity")
    )
    monkeypatch.setitem(registry._OWN, "renamed", renamed)
    after = results_of("renamed", ANCHORS[1])
    assert {result.check for result in after} == {"renamed.output_energy"}
    assert before[0].p_values
    assert run_digest(after) == run_digest(before)


def test_literals_and_comments_of_a_module_redraw_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[str]:
        cases = [
            *draw_examples(layers(), 20, 3, "literals"),
            *draw_examples(domain_of("netsor").strategy("netsor"), 10, 3, "literals"),
        ]
        return [case.key for case in (*cases, *draw_examples(stacks(max_entries=500), 5, 3, "literals"))]

    def of_any_numbers() -> list[object]:
        anything = st.lists(st.integers() | st.floats(), min_size=20).map(tuple)
        return [repr(each) for each in draw_examples(anything, 20, 3, "literals")]

    before, others = drawn(), of_any_numbers()
    file = tmp_path / "local_literals.py"
    file.write_text("# A comment.\nA, B, C = 12345, 0.7071, [104729, 1.618]\n", "utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    assert of_any_numbers() != others
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
    with pytest.raises(InputError, match="differs from another program only in an unnamed function"):
        run.items_on("fact1", [one, other])


def test_no_address_in_memory_is_in_a_key() -> None:
    @dataclasses.dataclass(repr=False)
    class Scaled:
        factor: float

        def __call__(self, x: np.ndarray) -> np.ndarray:
            return self.factor * x

    assert unnamed(Scaled(2.0)).key == unnamed(Scaled(2.0)).key
    assert unnamed(functools.partial(Scaled(2.0))).key == unnamed(functools.partial(Scaled(2.0))).key


if __name__ == "__main__":
    known = json.loads(KEYS.read_text("utf-8")) if KEYS.exists() else {}
    merged = {kind: {**found, **known.get(kind, {})} for kind, found in given_keys().items()}
    KEYS.write_text(json.dumps(merged, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
