"""Programs: text, round trips, expansion of layers, and coverage by the paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck import AttentionLayer, declared, relu, tanh
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.program import LinearCombination, Node, Program, Weight
from attncheck.layers.program.coverage import CoverageKind
from attncheck.layers.program.mixes import AttentionRow, sigmoid_mix


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


# Coverage: every boundary of Assumption 1 is recognised -------------------------------------------


class Written:
    """A program with two inputs x1 = tanh(W h), x2 = tanh(U h), to extend."""

    def __init__(self) -> None:
        self.program = Program()
        self.h = self.program.initial("h")
        self.x1, self.x2 = (self.program.nonlin(tanh(), self.apply(name, self.h)) for name in "WU")

    def weight(self, name: str) -> Weight:
        known = {weight.name: weight for weight in self.program.weights}
        return known[name] if name in known else self.program.weight(name)

    def apply(self, name: str, vector: Node) -> Node:
        return self.program.matmul(self.weight(name), vector)

    def score(self, left: str, right: str, x: Node | None = None, y: Node | None = None) -> Node:
        return self.program.score(self.apply(left, x or self.x1), self.apply(right, y or self.x2))

    def of(self, node: Node) -> tuple[CoverageKind, str]:
        line = self.program.coverage().of(node.name)
        return line.statement, line.reason


def signed(vector: FloatArray, score: FloatArray) -> FloatArray:
    return np.multiply(np.sign(score), vector)


def gated(vector: FloatArray, score: FloatArray) -> FloatArray:
    return np.multiply(np.tanh(score), vector)


def circular(w: Written) -> Node:
    inner = w.program.nonlin(tanh(), w.apply("Q", w.x1))
    w.score("Q", "L")
    return w.score("R", "K", inner)


def same_product(w: Written) -> Node:
    query = w.apply("Q", w.x1)
    w.program.score(query, w.apply("K", w.x1))
    return w.program.score(w.apply("R", w.program.nonlin(tanh(), query)), w.apply("L", w.x2))


def value_is_key(w: Written) -> Node:
    score = w.score("Q", "K")
    w.apply("K", w.x1)
    return score


def score_of_scores(w: Written) -> Node:
    return w.score("R", "L", w.program.nonlin(tanh(), output_of(w, sigmoid_mix)))


def image(w: Written, phi: Callable[..., FloatArray]) -> Node:
    return w.program.nonlin(phi, w.apply("R", w.h))


def around(w: Written, phi: Callable[..., FloatArray]) -> Node:
    x = image(w, phi)
    pairs = (("A", "B"), ("B", "C"), ("C", "A"))
    return [w.score(left, right, x, x) for left, right in pairs][-1]


def output_of(w: Written, function: Callable[..., FloatArray]) -> Node:
    return w.program.output(function, [w.apply("V", w.x1)], [w.score("Q", "K")])


def row_of_signs() -> AttentionRow:
    fields: dict[str, Any] = {"attention_map": lambda scores, visible: np.sign(scores)}
    return AttentionRow(AttentionLayer(width=8, num_heads=1, seq_len=1, **fields), 0)


def bounded_of_several(w: Written) -> Node:
    largest = w.program.nonlin(np.maximum, w.x1, w.program.nonlin(relu(), w.x2))
    return w.score("Q", "K", w.program.nonlin(LinearCombination((2.0, -1.0)), largest, w.x1))


def cancelled(w: Written) -> Node:
    twice = [w.apply("R", w.h) for _ in range(2)]
    return w.score("Q", "K", w.program.nonlin(tanh(), w.program.nonlin(np.subtract, *twice)))


def low_rank(w: Written) -> Node:
    q, k = (w.program.weight(name, rows=4) for name in "qk")
    return w.program.score(w.program.matmul(q, w.x1), w.program.matmul(k, w.x2))


def small_values(w: Written) -> Node:
    inner = w.program.matmul(w.program.weight("v", rows=4), w.x1)
    return w.program.matmul(w.program.weight("o", columns=4), inner)


def mean_of_several(w: Written) -> Node:
    return w.score("Q", "K", w.program.nonlin(np.maximum, w.x1, w.apply("R", w.h)))


def silent(w: Written, **zero: float) -> Node:
    """A score of a vector, a factor or a matrix that is 0."""
    x = w.program.nonlin(tanh(), w.program.initial("still", std=zero.get("initial", 1.0)))
    key = w.program.matmul(w.program.weight("K", std=zero.get("weight", 1.0)), w.x2)
    return w.program.score(w.apply("Q", x), key, factor=zero.get("factor", 1.0))


beyond = declared(lambda x: np.clip(x, 30.0, 31.0) - 30.0, order=1, bounded=True, name="beyond")
steep = declared(lambda x: 2.0 * x, order=1, bounded=False, name="steep")
CLIP = "is not a bounded function; clip it"
KNOWN = "use a function that attncheck knows, or declare it: attncheck.declared(φ, order="
SCORES = "depends on g3, a product with Q, a matrix of scores; give"

#: The last node of each program is examined, and the start of its reason. Several scores are written in order.
BOUNDARY: list[tuple[str, Callable[[Written], Node], CoverageKind, str]] = [
    ("allowed", lambda w: w.score("Q", "K"), CoverageKind.SCORE, ""),
    ("shared query", lambda w: [w.score("Q", k) for k in "KL"][-1], CoverageKind.SCORE, ""),
    ("crossed", lambda w: [w.score("Q", "K"), w.score("K", "Q", w.x2, w.x1)][-1], CoverageKind.SCORE, ""),
    ("chain", lambda w: [w.score(*pair) for pair in ("AB", "BC", "CD")][-1], CoverageKind.SCORE, ""),
    ("independent cycle", lambda w: [w.score(*pair) for pair in ("AB", "BC", "CA")][-1], CoverageKind.SCORE, ""),
    ("bounded of several", bounded_of_several, CoverageKind.SCORE, ""),
    ("mostly zero", lambda w: w.score("Q", "K", image(w, beyond)), CoverageKind.SCORE, ""),
    ("mixed", lambda w: output_of(w, sigmoid_mix), CoverageKind.OUTPUT, ""),
    ("declared", lambda w: output_of(w, declared(gated, order=2, bounded=False)), CoverageKind.OUTPUT, ""),
    ("product", lambda w: output_of(w, np.multiply), CoverageKind.OUTPUT, ""),
    ("tied", lambda w: w.score("Q", "Q"), CoverageKind.TIED, "Q is on both sides; give the score two matrices"),
    ("value is key", value_is_key, CoverageKind.EXTRA_USE, "K also makes g5, which is in no score; give that one a"),
    ("circular", circular, CoverageKind.CIRCULAR, f"x3 {SCORES} g6 other inputs"),
    ("same product", same_product, CoverageKind.CIRCULAR, f"x3 {SCORES} g5 other inputs"),
    ("unbounded", lambda w: w.score("Q", "K", image(w, relu())), CoverageKind.UNBOUNDED, f"x3 {CLIP}"),
    ("declared unbounded", lambda w: w.score("Q", "K", image(w, steep)), CoverageKind.UNBOUNDED, f"x3 {CLIP}"),
    ("initial", lambda w: w.score("Q", "K", w.h), CoverageKind.UNBOUNDED, f"h {CLIP}"),
    ("partly unbounded", mean_of_several, CoverageKind.UNBOUNDED, f"x3 {CLIP}"),
    ("undeclared", lambda w: w.score("Q", "K", image(w, np.tanh)), CoverageKind.UNDECLARED, KNOWN),
    ("cycle", lambda w: around(w, tanh()), CoverageKind.CYCLIC, "the matrices A · C · B form a cycle"),
    ("unbounded cycle", lambda w: around(w, relu()), CoverageKind.UNBOUNDED, f"x3 {CLIP}"),
    ("undeclared cycle", lambda w: around(w, np.sign), CoverageKind.UNDECLARED, KNOWN),
    ("discontinuous", lambda w: output_of(w, signed), CoverageKind.UNDECLARED, KNOWN),
    ("discontinuous row", lambda w: output_of(w, row_of_signs()), CoverageKind.UNDECLARED, KNOWN),
    ("after it", lambda w: w.program.nonlin(tanh(), output_of(w, signed)), CoverageKind.UNDECLARED, KNOWN),
    ("no initial", lambda w: silent(w, initial=0.0), CoverageKind.ZERO, "g4 is 0"),
    ("no factor", lambda w: silent(w, factor=0.0), CoverageKind.ZERO, "its factor is 0"),
    ("no weight", lambda w: silent(w, weight=0.0), CoverageKind.ZERO, "g3 is 0"),
    ("cancelled", cancelled, CoverageKind.ZERO, "g5 is 0"),
    ("small values", small_values, CoverageKind.FIXED_SIZE, "g3 has 4 coordinates"),
    ("low rank", low_rank, CoverageKind.FIXED_SIZE, "g3 has 4 coordinates"),
    ("later", lambda w: w.apply("Z", output_of(w, sigmoid_mix)), CoverageKind.CONJECTURE, "y1 depends on scores"),
    ("score of scores", score_of_scores, CoverageKind.CONJECTURE, "x3 depends on scores"),
]


@pytest.mark.parametrize(("name", "write", "statement", "reason"), BOUNDARY, ids=[name for name, *_ in BOUNDARY])
def test_boundary(name: str, write: Callable[[Written], Node], statement: CoverageKind, reason: str) -> None:
    w = Written()
    line, text = w.of(write(w))
    assert line == statement
    assert text.startswith(reason) if reason else not text


def test_outputs_take_over_what_speaks_against_their_scores() -> None:
    w = Written()
    good = w.program.output(sigmoid_mix, [w.apply("V", w.x1)], [w.score("Q", "K")])
    assert w.of(good)[0] == CoverageKind.OUTPUT
    assert w.program.coverage().proved
    bad = w.program.output(sigmoid_mix, [w.apply("V", w.x1)], [w.score("Q", "Q")])
    assert w.of(bad)[0] == CoverageKind.TIED
    found = w.program.coverage()
    # Q makes vectors of the tied score, but these are in a score: the earlier statement holds.
    assert found.of(good.name).statement == CoverageKind.OUTPUT
    assert not found.proved
    assert not found.has_limit
    assert found.worst.statement == CoverageKind.TIED
    lines = str(found).splitlines()
    assert len(lines) == len(w.program.nodes)
    assert lines[0] == "h: Fact 1"
    assert "p2: violates Assumption 1 (b) (Q is on both sides; give the score two matrices)" in lines
