"""Stack descriptions: errors, serialisation, and coverage by the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attncheck import AttentionLayer, AttentionStack, InputError
from attncheck.layers.program.coverage import CoverageKind
from tests.simulators.cases import BLOCKS, NORMED

LAYER = AttentionLayer(width=8, seq_len=2, num_heads=2, clip=3.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layer": "n=8"}, r"layer='n=8': is not an AttentionLayer; pass"),
        ({"depth": 0}, r"depth=0: must be at least 1; pass the number of layers"),
        ({"depth": 1_001}, r"depth=1001: must be at most 1000; pass the number of layers"),
        ({"depth": 10**12}, r"depth=10+: must be at most 1000; pass the number of layers"),
        ({"depth": 2.5}, r"depth=2\.5: must be a whole number; pass"),
        ({"depth": float("nan")}, r"depth=nan: must be a whole number; pass"),
        ({"activations": "gelu"}, r"activations='gelu': is not known; use one of"),
        ({"activations": ("relu",)}, r"activations=\('relu',\): must be one name, or 3, one for each layer; pass"),
        ({"activations": 7}, r"activations=7: is neither a name nor a list of names; pass"),
        ({"residual": 1}, r"residual=1: must be a boolean; pass"),
        ({"post_norm": "batch"}, r"post_norm='batch'"),
        ({"layer": LAYER.replace(width=1), "post_norm": "layer"}, r"post_norm='layer': makes a single neuron 0"),
    ],
)
def test_impossible_stacks_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="^" + said):
        AttentionStack(**{"layer": LAYER, "depth": 3, **fields})


def test_layers_have_their_own_activations_and_the_templates_clip() -> None:
    stack = AttentionStack(layer=LAYER, depth=3, activations=["clip", "relu", "clip"])
    assert [(layer.activation, layer.clip) for layer in stack.layers] == [("clip", 3.0), ("relu", 100.0), ("clip", 3.0)]
    assert AttentionStack(layer=LAYER, depth=2).layers == (LAYER, LAYER)
    assert AttentionStack(layer=LAYER, depth=2) == AttentionStack(layer=LAYER, depth=2, activations="clip")
    assert hash(AttentionStack(layer=LAYER, depth=2)) == hash(AttentionStack(layer=LAYER, depth=2, activations="clip"))


def test_stacks_survive_a_round_trip(tmp_path: Path) -> None:
    layer, names = LAYER.replace(head_dim=3, mask="causal"), ("relu", "tanh", "clip")
    deep = (AttentionStack(layer=layer, depth=k, activations=names[:k], residual=True) for k in (1, 3))
    stacks = (*deep, *NORMED, *BLOCKS)
    assert len({stack.key for stack in stacks}) == len(stacks)
    for stack in stacks:
        assert AttentionStack.from_dict(stack.to_dict()) == stack
        assert AttentionStack.from_toml(stack.to_toml()) == stack
        (tmp_path / "stack.toml").write_text(stack.to_toml(), encoding="utf-8")
        assert AttentionStack.from_toml(tmp_path / "stack.toml") == stack


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"layer=None: is missing"),
        ({"layer": LAYER.to_dict()}, r"depth=None: is missing"),
        ({"layer": LAYER.to_dict(), "depth": 2, "width": 8}, r"stack\.width=8: is not a field of AttentionStack"),
        ({"layer": {"width": -1}, "depth": 2}, r"width=-1: must be at least 1"),
    ],
)
def test_wrong_tables_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="^" + said):
        AttentionStack.from_dict(fields)


def test_toml_without_a_stack_is_refused() -> None:
    with pytest.raises(InputError, match=r"^stack: has no \[stack\] table"):
        AttentionStack.from_toml("[layer]\nwidth = 8\n")


def test_replacing_keeps_one_activation_at_any_depth() -> None:
    stack = AttentionStack(layer=LAYER, depth=2, activations="relu")
    assert stack.replace(depth=4).activations == ("relu",) * 4
    assert stack.at_width(32) == stack.replace(layer=LAYER.replace(width=32))
    with pytest.raises(InputError, match=r"^activations=\('relu', 'tanh'\): must be one name, or 3"):
        AttentionStack(layer=LAYER, depth=2, activations=("relu", "tanh")).replace(depth=3)
    with pytest.raises(InputError, match=r"^changes\.width=3: is not a field"):
        stack.replace(width=3)


def test_descriptions_say_conjecture_from_the_second_layer_on() -> None:
    assert AttentionStack(layer=LAYER, depth=1).describe() == "n=8 s=2 H=2 depth=1 clip=3.0"
    stack = AttentionStack(layer=LAYER, depth=2, activations=("relu", "tanh"), residual=True)
    assert stack.describe() == "n=8 s=2 H=2 depth=2 relu/tanh residual (conjecture)"
    assert "norm=rms depth=2" in NORMED[0].describe()
    assert "residual post_norm=rms" in NORMED[2].describe()


def test_weight_entries_are_those_of_the_program() -> None:
    for layer in (LAYER, LAYER.replace(head_dim=3, num_kv_heads=1, input_correlation=0.5)):
        for depth in (1, 3):
            stack = AttentionStack(layer=layer, depth=depth)
            shapes = [weight.shape(8) for weight in stack.expand().program.weights]
            assert stack.weight_entries == sum(rows * columns for rows, columns in shapes)


@pytest.mark.parametrize(("depth", "residual"), [(1, True), (2, False), (4, True)])
def test_coverage_is_a_conjecture_from_the_second_layer_on(depth: int, residual: bool) -> None:
    stack = AttentionStack(layer=LAYER, depth=depth, residual=residual)
    found = stack.coverage()
    if depth == 1:
        assert found.proved
        assert found.lines[-1].statement == CoverageKind.OUTPUT
    else:
        assert found.worst.statement == CoverageKind.CONJECTURE
        assert not found.has_limit
        assert {line.statement for line in found.lines if line.name.startswith("L1.")} == (
            {CoverageKind.NETSOR, CoverageKind.SCORE, CoverageKind.OUTPUT}
        )
        assert {line.statement for line in found.lines if line.name.startswith("L2.y")} == {CoverageKind.CONJECTURE}


def test_matrices_of_different_layers_are_different() -> None:
    names = [weight.name for weight in AttentionStack(layer=LAYER, depth=2).expand().program.weights]
    assert len(set(names)) == len(names)
    assert {"L1.Q1", "L2.Q1", "W1", "W2"} <= set(names)
