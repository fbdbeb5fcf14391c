"""Programs: text, round trips, and expansion of layers."""

from __future__ import annotations

import json

import numpy as np

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.program import LinearCombination


def softplus(x: FloatArray) -> FloatArray:
    return np.logaddexp(0.0, x)


def gate(vector: FloatArray, *scores: FloatArray) -> FloatArray:
    return np.asarray(np.tanh(scores[0]) * vector)


def written() -> ac.Program:
    """A program with every kind of line, weight and function."""
    program = ac.Program()
    a, b = program.initials(["a", "b"], [0.0, 1.5], [[4.0, 1 / 3], [1 / 3, 1.0]])
    W, low, back = program.weight("W", 2.0), program.weight("L", rows=3), program.weight("B", columns=3)
    x = program.nonlin(np.tanh, program.matmul(W, a), name="x")
    both = program.nonlin(LinearCombination((1.0, -0.3)), x, program.nonlin(ac.sin(2.0), b))
    left, right = program.matmul(low, x), program.matmul(low, program.nonlin(ac.clip(3.0), both))
    wide = program.score(program.matmul(W, x), program.matmul(back, left, "v"), 0.25, "s")
    short = program.score(left, right)
    program.output(ac.declared(gate, order=2, bounded=False), [both], [short, wide])
    zero = program.matmul(program.weight("zero", 0.0), x)
    program.nonlin(ac.declared(softplus, order=1, bounded=False), zero)
    return program


def test_a_program_reads_line_by_line() -> None:
    program = written()
    lines = str(program).splitlines()
    assert lines == [
        "a ~ N(0, 4)",
        "b ~ N(1.5, 1)",
        "g1 = W a",
        "x = tanh(g1)",
        "x1 = sin(2)(b)",
        "x2 = linear(1, -0.3)(x, x1)",
        "g2 = L x",
        "x3 = clip(3)(x2)",
        "g3 = L x3",
        "g4 = W x",
        "v = B g2",
        "s = 0.25 <g4, v> / sqrt(n)",
        "p1 = <g2, g3> / sqrt(3)",
        "y1 = gate(x2, p1, s)",
        "g5 = zero x",
        "x4 = softplus(g5)",
    ]
    assert repr(program) == "<Program of 16 lines and 4 weights>\n" + "\n".join(lines)
    assert [node.name for node in program.nodes] == [line.split()[0] for line in lines]
    assert [weight.shape(8) for weight in program.weights] == [(8, 8), (3, 8), (8, 3), (8, 8)]
    assert [program.nodes[i].length(8) for i in (0, 6, 10, 12, 13)] == [8, 3, 8, 1, 8]
    assert repr(ac.Program()) == "<Program of 0 lines and 0 weights>\n"
    assert ac.Program().steps() == ()


def test_names_that_are_made_up_avoid_those_that_are_given() -> None:
    program = ac.Program()
    W = program.weight("W")
    h = program.initial("g2")
    names = [program.matmul(W, h).name, program.matmul(W, h, "g3").name, program.matmul(W, h).name]
    assert names == ["g1", "g3", "g4"]


def test_built_in_types_give_the_program_back() -> None:
    program = written()
    fields = json.loads(json.dumps(program.to_dict()))
    again = ac.Program.from_dict(fields, trust=[__name__])
    assert str(again) == str(program)
    assert again.to_dict() == program.to_dict() == fields
    drawn, redrawn = (ac.simulate(each.at(5), 3, seed=1, coordinates=2) for each in (program, again))
    np.testing.assert_array_equal(drawn.outputs, redrawn.outputs)
    np.testing.assert_array_equal(drawn.scores, redrawn.scores)
    program.nonlin(lambda x: x + 1.0, program.nodes[0])
    assert program.to_dict()["lines"][-1]["nonlin"] == {"local": "<lambda>"}


def test_shorthand_for_people() -> None:
    lines = [
        {"initial": ["h"]},
        {"matmul": "W", "of": "h", "name": "g"},
        {"nonlin": "relu", "of": ["g"]},
        {"nonlin": "numpy:sin", "of": ["g"]},
    ]
    program = ac.Program.from_dict({"weights": [{"name": "W"}, {"name": "V", "std": 2.0}], "lines": lines})
    assert str(program).splitlines() == ["h ~ N(0, 1)", "g = W h", "x1 = relu(g)", "x2 = sin(g)"]
    assert program.nodes[2].function == ac.relu()  # type: ignore[attr-defined]  # nodes[2] is a Nonlin


def test_a_layer_reads_as_example_1() -> None:
    layer = ac.AttentionLayer(
        width=8, seq_len=2, num_heads=2, num_kv_heads=1, head_dim=3, score_scaling="1/n", input_correlation=0.5
    )
    assert str(expand(layer).program).splitlines() == [
        *("h ~ N(0, 1)", "h0 = W0 h"),
        *("g1 = W1 h", "h1 = linear(1, 1)(h0, g1)", "x1 = clip(100)(h1)"),
        *("g2 = W2 h", "h2 = linear(1, 1)(h0, g2)", "x2 = clip(100)(h2)"),
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
