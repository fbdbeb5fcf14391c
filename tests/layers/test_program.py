"""Programs: text, order of steps, errors, and expansion of layers."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, Program
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.program import Initial, LinearCombination, MatMul, Node, Nonlin, Output, Score, Step
from attncheck.strategies import layers


def first_row(vector: FloatArray, score: FloatArray, *others: FloatArray) -> FloatArray:
    return vector * score


# How a program reads


def test_a_program_reads_line_by_line() -> None:
    program = Program()
    a, b = program.initials(["a", "b"], [0.0, 1.5], [[4.0, 1.0], [1.0, 1.0]])
    W = program.weight("W", 2.0)
    low = program.weight("L", rows=3)
    back = program.weight("B", columns=3)
    x = program.nonlin(np.tanh, program.matmul(W, a), name="x")
    both = program.nonlin(LinearCombination((1.0, -1.0)), x, b)
    left, right = program.matmul(low, x), program.matmul(low, both)
    short = program.score(left, right)
    wide = program.score(program.matmul(W, x), program.matmul(back, left, "v"), 0.25, "s")
    program.output(first_row, [both], [short, wide])
    lines = str(program).splitlines()
    assert lines == [
        "a ~ N(0, 4)",
        "b ~ N(1.5, 1)",
        "g1 = W a",
        "x = tanh(g1)",
        "x1 = linear(1, -1)(x, b)",
        "g2 = L x",
        "g3 = L x1",
        "p1 = <g2, g3> / sqrt(3)",
        "g4 = W x",
        "v = B g2",
        "s = 0.25 <g4, v> / sqrt(n)",
        "y1 = first_row(x1, p1, s)",
    ]
    assert repr(program) == "<Program of 12 lines and 3 weights>\n" + "\n".join(lines)
    assert [weight.name for weight in program.weights] == ["W", "L", "B"]
    assert [node.name for node in program.nodes] == [line.split()[0] for line in lines]
    assert [weight.shape(8) for weight in program.weights] == [(8, 8), (3, 8), (8, 3)]
    assert [program.nodes[i].length(8) for i in (0, 5, 7, 9, 11)] == [8, 3, 1, 8, 8]


def test_an_empty_program_reads_too() -> None:
    assert repr(Program()) == "<Program of 0 lines and 0 weights>\n"
    assert Program().steps() == ()


def test_names_that_are_made_up_avoid_those_that_are_given() -> None:
    program = Program()
    W = program.weight("W")
    h = program.initial("g2")
    names = [program.matmul(W, h).name, program.matmul(W, h, "g3").name, program.matmul(W, h).name]
    assert names == ["g1", "g3", "g4"]


# The order of steps


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs with shared and own weights, scores and outputs, in any order."""
    program = Program()
    weights = [program.weight(f"W{k}") for k in range(draw(st.integers(1, 3)))]
    vectors: list[Node] = [*program.initials(["a", "b"], [0.0, 0.5], [[1.0, 0.6], [0.6, 1.0]])]
    images: list[Node] = []
    scores: list[Node] = []
    for kind in draw(st.lists(st.sampled_from(("matmul", "nonlin", "initial", "score", "output")), max_size=14)):
        pick = st.sampled_from(vectors)
        if kind == "matmul":
            images.append(program.matmul(draw(st.sampled_from(weights)), draw(pick)))
            vectors.append(images[-1])
        elif kind == "nonlin":
            vectors.append(program.nonlin(LinearCombination((1.0, -0.5)), draw(pick), draw(pick)))
        elif kind == "initial":
            vectors.append(program.initial(f"h{len(vectors)}", 1.0, 2.0))
        elif kind == "score" and images:
            pick = st.sampled_from(images)
            scores.append(program.score(draw(pick), draw(pick), draw(st.sampled_from((1.0, 0.5)))))
        elif kind == "output" and scores:
            vectors.append(program.output(first_row, [draw(pick)], draw(st.lists(st.sampled_from(scores), min_size=1))))
    return program


def step_numbers(steps: tuple[Step, ...]) -> dict[Node, int]:
    return {node: i for i, step in enumerate(steps) for node in step.nodes}


@settings(max_examples=60)
@given(programs())
def test_steps_respect_parents_and_hold_each_line_once(program: Program) -> None:
    steps = program.steps()
    where = step_numbers(steps)
    assert sorted(map(id, where)) == sorted(map(id, program.nodes))
    assert sum(len(step.nodes) for step in steps) == len(program.nodes)
    for node, number in where.items():
        assert all(where[parent] < number for parent in node.parents)
    last_use: dict[str, int] = {}
    for i, step in enumerate(steps):
        assert len({type(node) for node in step.nodes}) == 1
        first = step.nodes[0]
        if isinstance(first, MatMul):
            assert {node.weight for node in step.nodes if isinstance(node, MatMul)} == {first.weight}
            # Of two steps of one weight, the later waited for the earlier, or for one after that.
            assert where[first.parents[0]] >= last_use.get(first.weight.name, -1)
            last_use[first.weight.name] = i
        elif isinstance(first, Score):
            assert len({(where[node.parents[0]], where[node.parents[1]]) for node in step.nodes}) == 1
            assert len({node.factor for node in step.nodes if isinstance(node, Score)}) == 1
        elif isinstance(first, Initial):
            assert len({node.group for node in step.nodes if isinstance(node, Initial)}) == 1
        else:
            assert len(step.nodes) == 1
    for i, step in enumerate(steps):
        first = step.nodes[0]
        assert step.last == (not isinstance(first, MatMul) or last_use[first.weight.name] == i)


# What a layer expands to


@settings(max_examples=40)
@given(layers(max_entries=2_000_000))
def test_a_layer_expands_to_its_matrices_scores_and_positions(layer: AttentionLayer) -> None:
    """`tests/simulators/test_interpret.py` tests what its lines compute."""
    expansion = expand(layer)
    program = expansion.program
    s, heads = layer.seq_len, layer.num_heads
    assert sum(math.prod(weight.shape(layer.width)) for weight in program.weights) == layer.weight_entries
    kinds = Counter(type(step.nodes[0]) for step in program.steps())
    assert [kinds[kind] for kind in (MatMul, Score, Output)] == [len(program.weights), heads, s]
    assert all(step.last for step in program.steps())
    assert [len(group) for group in expansion.keys] == [s] * layer.kv_heads
    assert [len(group) for group in expansion.values] == [s] * layer.kv_heads
    stds = {"Q": layer.query_std, "K": layer.key_std, "V": layer.value_std, "O": layer.output_std}
    for weight in program.weights:
        if weight.name[0] != "W":
            assert weight.std == stds[weight.name[0]]
    variance = sum(w.std**2 for w in program.weights if w.name in ("W0", "W1"))
    assert variance == pytest.approx(layer.input_std**2, rel=1e-12)


def test_a_layer_reads_as_example_1() -> None:
    layer = AttentionLayer(
        width=8, seq_len=2, num_heads=2, num_kv_heads=1, head_dim=3, score_scaling="1/n", input_correlation=0.5
    )
    assert str(expand(layer).program).splitlines() == [
        "h ~ N(0, 1)",
        "h0 = W0 h",
        "g1 = W1 h",
        "h1 = linear(1, 1)(h0, g1)",
        "x1 = clip(100)(h1)",
        "g2 = W2 h",
        "h2 = linear(1, 1)(h0, g2)",
        "x2 = clip(100)(h2)",
        *("k1,1 = K1 x1", "k1,2 = K1 x2", "v1,1 = V1 x1", "v1,2 = V1 x2"),
        *("q1,1 = Q1 x1", "q1,2 = Q1 x2"),
        *(f"p1,{i},{j} = 0.57735 <q1,{i}, k1,{j}> / sqrt(3)" for i in (1, 2) for j in (1, 2)),
        *("o1,1 = O1 v1,1", "o1,2 = O1 v1,2"),
        *("q2,1 = Q2 x1", "q2,2 = Q2 x2"),
        *(f"p2,{i},{j} = 0.57735 <q2,{i}, k1,{j}> / sqrt(3)" for i in (1, 2) for j in (1, 2)),
        *("o2,1 = O2 v1,1", "o2,2 = O2 v1,2"),
        "y1 = attention[0](o1,1, o1,2, o2,1, o2,2, p1,1,1, p1,1,2, p2,1,1, p2,1,2)",
        "y2 = attention[1](o1,1, o1,2, o2,1, o2,2, p1,2,1, p1,2,2, p2,2,1, p2,2,2)",
    ]


def test_equal_inputs_are_one_vector() -> None:
    program = expand(AttentionLayer(width=8, seq_len=3, num_heads=1, input_correlation=1.0)).program
    assert [weight.name for weight in program.weights if weight.name.startswith("W")] == ["W0"]
    inputs = [node for node in program.nodes if isinstance(node, Nonlin)]
    assert len({node.parents for node in inputs}) == 1


def test_a_semidefinite_covariance_is_kept_exactly() -> None:
    program = Program()
    cov = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    nodes = program.initials(["a", "b", "c"], [0.0, 0.0, 2.0], cov)
    root = np.array([node.root for node in nodes if isinstance(node, Initial)])
    np.testing.assert_allclose(root @ root.T, cov, atol=1e-15)
    assert str(program).splitlines()[2] == "c ~ N(2, 0)"
