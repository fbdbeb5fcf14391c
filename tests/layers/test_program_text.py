"""Programs as text: exact round trips, and errors with line numbers."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings

import attncheck as ac
from attncheck import AttentionLayer, Program
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.nonlinearity import clip, declared, relu, sin
from attncheck.layers.program import LinearCombination
from attncheck.strategies import layers


def gate(vector: FloatArray, score: FloatArray) -> FloatArray:
    return np.asarray(np.tanh(score) * vector)


def softplus(x: FloatArray) -> FloatArray:
    return np.logaddexp(0.0, x)


def written() -> Program:
    """A program with every kind of line, weight and function in text."""
    program = Program()
    h, k = program.initials(["h", "k"], [0.5, -1.0], [[1.0, 1 / 3], [1 / 3, 2.0]])
    W, Q, K, zero = (program.weight(name, std) for name, std in (("W", 0.1), ("Q", 1.0), ("K", 1.0), ("zero", 0.0)))
    low, high = program.weight("low", rows=3), program.weight("high", columns=3)
    x = program.nonlin(clip(3.0), program.matmul(W, h), name="x")
    z = program.nonlin(LinearCombination((1.0, 0.3)), x, program.nonlin(sin(2.0), k))
    w = program.nonlin(declared(softplus, order=1, bounded=False), z)
    a = program.score(program.matmul(Q, x), program.matmul(K, w), factor=0.5)
    v = program.matmul(high, program.matmul(low, program.nonlin(np.tanh, program.matmul(zero, x))))
    program.output(gate, vectors=[v], scores=[a])
    program.nonlin(np.maximum, v, x, name="both")
    return program


def same(one: Program, other: Program) -> None:
    assert str(one) == str(other)
    assert one.to_dict() == other.to_dict()
    drawn, again = (ac.simulate(program.at(5), 3, seed=1, coordinates=2) for program in (one, other))
    np.testing.assert_array_equal(drawn.outputs, again.outputs)
    np.testing.assert_array_equal(drawn.scores, again.scores)


def test_built_in_types_give_the_program_back() -> None:
    program = written()
    fields = json.loads(json.dumps(program.to_dict()))
    same(program, Program.from_dict(fields, trust=[__name__]))
    assert fields["lines"][1]["matmul"] == "W"


@settings(max_examples=20)
@given(layers(max_entries=2_000, max_width=8).filter(lambda layer: layer.num_heads * layer.seq_len**2 < 60))
def test_layers_expand_to_programs_that_can_be_written_down(layer: AttentionLayer) -> None:
    program = expand(layer).program
    again = Program.from_dict(program.to_dict())
    assert str(again) == str(program)
    assert again.to_dict() == program.to_dict()


def test_shorthand_for_people() -> None:
    program = Program.from_dict(
        {
            "weights": [{"name": "W"}, {"name": "V", "std": 2.0}],
            "lines": [
                {"initial": ["h"]},
                {"matmul": "W", "of": "h", "name": "g"},
                {"nonlin": "relu", "of": ["g"]},
                {"nonlin": "numpy:sin", "of": ["g"]},
            ],
        }
    )
    assert str(program).splitlines() == ["h ~ N(0, 1)", "g = W h", "x1 = relu(g)", "x2 = sin(g)"]
    assert program.nodes[2].function == relu()  # type: ignore[attr-defined]  # nodes[2] is a Nonlin


def test_functions_without_names_are_named_in_built_in_types() -> None:
    program = Program()
    program.nonlin(lambda x: x + 1.0, program.initial("h"))
    assert program.to_dict()["lines"][1]["nonlin"] == {"local": "<lambda>"}
