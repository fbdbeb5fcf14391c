"""Programs: text, order of steps, errors, and expansion of layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck import AttentionLayer, InputError, Program
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


# What is refused


class Written:
    """A small program, and lines and a weight of another."""

    def __init__(self) -> None:
        self.program = Program()
        self.W = self.program.weight("W")
        self.low = self.program.weight("L", rows=3)
        self.h = self.program.initial("h")
        self.g = self.program.matmul(self.W, self.h)
        self.short = self.program.matmul(self.low, self.h, "short")
        self.p = self.program.score(self.g, self.g)
        other = Program()
        self.foreign_weight = other.weight("W")
        self.foreign = other.matmul(self.foreign_weight, other.initial("z"), "foreign")
        self.foreign_score = other.score(self.foreign, self.foreign, name="fp")


def in_place(vector: FloatArray) -> FloatArray:
    """In-place ReLU, which would change its input line."""
    return np.maximum(vector, 0.0, out=vector)


def two(written: Written, cov: Any) -> object:
    """Add two initial vectors of this covariance."""
    return written.program.initials(["y", "z"], [0, 0], cov)


REFUSED: dict[str, tuple[Callable[[Written], object], str]] = {
    "matmul of a foreign line": (lambda w: w.program.matmul(w.W, w.foreign), "node='foreign': is not a line of this"),
    "matmul of a foreign weight": (lambda w: w.program.matmul(w.foreign_weight, w.h), "weight=.*not a weight of this"),
    "matmul of a score": (lambda w: w.program.matmul(w.W, w.p), "vector='p1': is a score"),
    "matmul of another size": (lambda w: w.program.matmul(w.W, w.short), "weight='W': has n columns, but short has 3"),
    # Wrong type on purpose.
    "matmul of no node": (lambda w: w.program.matmul(w.W, "h"), "node='h': is not a line of a program"),  # type: ignore[arg-type]
    "nonlin of a foreign line": (lambda w: w.program.nonlin(np.tanh, w.g, w.foreign), "node='foreign': is not a line"),
    "nonlin of a score": (lambda w: w.program.nonlin(np.tanh, w.p), "vectors='p1': is a score, not a vector"),
    "nonlin of two sizes": (lambda w: w.program.nonlin(np.add, w.g, w.short), "vectors='short': differs in size"),
    "nonlin of nothing": (lambda w: w.program.nonlin(np.tanh), r"vectors=\(\): .*at least one vector"),
    # Wrong type on purpose.
    "nonlin of no node": (lambda w: w.program.nonlin(np.tanh, 3), "node=3: is not a line of a program"),  # type: ignore[arg-type]
    "nonlin in place": (lambda w: w.program.nonlin(in_place, w.g), "function=in_place: .*read-only.*not change them"),
    "output in place": (lambda w: w.program.output(in_place, [w.g], []), "function=in_place: .*read-only.*not change"),
    "score of an initial": (lambda w: w.program.score(w.g, w.h), "score='h': is not the output of a MatMul"),
    "score of a score": (lambda w: w.program.score(w.p, w.g), "score='p1': is not the output of a MatMul"),
    "score of two sizes": (lambda w: w.program.score(w.g, w.short), "vectors='short': differs in size"),
    "score of a foreign line": (lambda w: w.program.score(w.g, w.foreign), "node='foreign': is not a line of this"),
    # Wrong type on purpose.
    "score of no node": (lambda w: w.program.score(w.g, None), "node=None: is not a line of a program"),  # type: ignore[arg-type]
    "score with a factor that is none": (lambda w: w.program.score(w.g, w.g, math.nan), "factor=nan: must be finite"),
    "output of a score": (lambda w: w.program.output(first_row, [w.p], [w.p]), "vectors='p1': is a score"),
    "output with a vector for a score": (lambda w: w.program.output(first_row, [w.g], [w.h]), "scores='h': is a vec"),
    "output of a foreign score": (lambda w: w.program.output(first_row, [w.g], [w.foreign_score]), "node='fp': is not"),
    "output of nothing": (lambda w: w.program.output(first_row, [], [w.p]), r"vectors=\(\): "),
    "a line's name twice": (lambda w: w.program.matmul(w.W, w.g, "h"), "name='h': is the name of another line"),
    "a weight's name twice": (lambda w: w.program.weight("W"), "name='W': is the name of another weight"),
    "a weight without rows": (lambda w: w.program.weight("N", rows=0), "rows=0: must be at least 1"),
    # Wrong type on purpose.
    "a weight with half a column": (lambda w: w.program.weight("N", columns=0.5), "columns=0.5: must be a whole"),  # type: ignore[arg-type]
    "a weight of negative std": (lambda w: w.program.weight("N", -1.0), "std=-1.0: must be at least 0"),
    "an initial of negative std": (lambda w: w.program.initial("z", std=-1.0), "std=-1.0: must be at least 0"),
    "an initial without mean": (lambda w: w.program.initial("z", mean=math.nan), "mean=nan: must be finite"),
    "too few means": (lambda w: w.program.initials(["z"], [], [[1.0]]), r"cov=\(1, 1\): must be \(1, 1\), with a mean"),
    "a second mean of nan": (lambda w: w.program.initials(["y", "z"], [0, math.nan], np.eye(2)), "mean=nan"),
    "a flat covariance": (lambda w: two(w, [1.0, 1.0]), r"cov=\(2,\): must be \(2, 2\)"),
    "an asymmetric covariance": (lambda w: two(w, [[1, 0.5], [0, 1]]), "cov=.*symmetric"),
    "a covariance that cannot be": (lambda w: two(w, [[1, 2], [2, 1]]), "cov=.*negative"),
    "an infinite covariance": (lambda w: w.program.initials(["z"], [0], [[math.inf]]), "cov=.*must be finite"),
    "a ragged covariance": (lambda w: two(w, [[1], [2, 1]]), "cov=.*matrix of numbers"),
    "a covariance of words": (lambda w: w.program.initials(["z"], [0], [["one"]]), "cov=.*matrix of numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_program_is_refused(case: str) -> None:
    written = Written()
    before = repr(written.program)
    write, said = REFUSED[case]
    with pytest.raises(InputError, match=said) as caught:
        write(written)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)
    assert repr(written.program) == before


def test_a_semidefinite_covariance_is_kept_exactly() -> None:
    program = Program()
    cov = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    nodes = program.initials(["a", "b", "c"], [0.0, 0.0, 2.0], cov)
    root = np.array([node.root for node in nodes if isinstance(node, Initial)])
    np.testing.assert_allclose(root @ root.T, cov, atol=1e-15)
    assert str(program).splitlines()[2] == "c ~ N(2, 0)"
