"""Coverage: every boundary of Assumption 1 is recognised in a program's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attncheck import AttentionLayer
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.nonlinearity import declared, relu, tanh
from attncheck.layers.program import LinearCombination, Node, Program, Weight
from attncheck.layers.program.coverage import Coverage, CoverageKind
from attncheck.layers.program.mixes import AttentionRow, sigmoid_mix


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


def allowed(w: Written) -> Node:
    return w.score("Q", "K")


def shared_query(w: Written) -> Node:
    w.score("Q", "K")
    return w.score("Q", "L")


def crossed(w: Written) -> Node:
    w.score("Q", "K")
    return w.score("K", "Q", w.x2, w.x1)


def tied(w: Written) -> Node:
    return w.score("Q", "Q")


def value_is_key(w: Written) -> Node:
    score = w.score("Q", "K")
    w.apply("K", w.x1)
    return score


def circular(w: Written) -> Node:
    inner = w.program.nonlin(tanh(), w.apply("Q", w.x1))
    w.score("Q", "L")
    return w.score("R", "K", inner)


def own_product(w: Written) -> Node:
    query = w.apply("Q", w.x1)
    w.program.score(query, w.apply("K", w.x1))
    return w.program.score(w.apply("R", w.program.nonlin(tanh(), query)), w.apply("L", w.x2))


def unbounded(w: Written) -> Node:
    return w.score("Q", "K", w.program.nonlin(relu(), w.apply("R", w.h)))


def straight_from_initial(w: Written) -> Node:
    return w.score("Q", "K", w.h)


def undeclared(w: Written) -> Node:
    return w.score("Q", "K", w.program.nonlin(np.tanh, w.apply("R", w.h)))


def cycle(w: Written) -> Node:
    return around(w, tanh())


def independent_cycle(w: Written) -> Node:
    w.score("A", "B")
    w.score("B", "C")
    return w.score("C", "A")


def around(w: Written, phi: Callable[..., FloatArray]) -> Node:
    x = w.program.nonlin(phi, w.apply("R", w.h))
    pairs = (("A", "B"), ("B", "C"), ("C", "A"))
    return [w.score(left, right, x, x) for left, right in pairs][-1]


def unbounded_cycle(w: Written) -> Node:
    return around(w, relu())


def undeclared_cycle(w: Written) -> Node:
    return around(w, np.sign)


def output_of(w: Written, function: Callable[..., FloatArray]) -> Node:
    return w.program.output(function, [w.apply("V", w.x1)], [w.score("Q", "K")])


def discontinuous(w: Written) -> Node:
    return output_of(w, signed)


def after_an_output(w: Written) -> Node:
    return w.program.nonlin(tanh(), output_of(w, signed))


def mixed(w: Written) -> Node:
    return output_of(w, sigmoid_mix)


def discontinuous_row(w: Written) -> Node:
    fields: dict[str, Any] = {"attention_map": lambda scores, visible: np.sign(scores)}
    row = AttentionRow(AttentionLayer(width=8, num_heads=1, seq_len=1, **fields), 0)
    return w.program.output(row, [w.apply("V", w.x1)], [w.score("Q", "K")])


def bounded_of_several(w: Written) -> Node:
    largest = w.program.nonlin(np.maximum, w.x1, w.program.nonlin(relu(), w.x2))
    return w.score("Q", "K", w.program.nonlin(LinearCombination((2.0, -1.0)), largest, w.x1))


def partly_unbounded(w: Written) -> Node:
    return w.score("Q", "K", w.program.nonlin(np.maximum, w.x1, w.apply("R", w.h)))


def product(w: Written) -> Node:
    return output_of(w, np.multiply)


def small_values(w: Written) -> Node:
    inner = w.program.matmul(w.program.weight("v", rows=4), w.x1)
    return w.program.matmul(w.program.weight("o", columns=4), inner)


def still(w: Written) -> Node:
    return w.score("Q", "K", w.program.nonlin(tanh(), w.program.initial("still", std=0.0)))


def no_factor(w: Written) -> Node:
    return w.program.score(w.apply("Q", w.x1), w.apply("K", w.x1), factor=0.0)


def no_weight(w: Written) -> Node:
    return w.program.score(w.apply("Q", w.x1), w.program.matmul(w.program.weight("K", std=0.0), w.x2))


def cancelled(w: Written) -> Node:
    twice = [w.apply("R", w.h) for _ in range(2)]
    return w.score("Q", "K", w.program.nonlin(tanh(), w.program.nonlin(np.subtract, *twice)))


def mostly_zero(w: Written) -> Node:
    beyond = declared(lambda x: np.clip(x, 30.0, 31.0) - 30.0, order=1, bounded=True, name="beyond")
    return w.score("Q", "K", w.program.nonlin(beyond, w.apply("R", w.h)))


def chain(w: Written) -> Node:
    w.score("A", "B")
    w.score("B", "C")
    return w.score("C", "D")


def later(w: Written) -> Node:
    y = w.program.output(sigmoid_mix, [w.apply("V", w.x1)], [w.score("Q", "K")])
    return w.apply("Z", y)


def score_of_scores(w: Written) -> Node:
    y = w.program.output(sigmoid_mix, [w.apply("V", w.x1)], [w.score("Q", "K")])
    return w.score("R", "L", w.program.nonlin(tanh(), y))


def low_rank(w: Written) -> Node:
    q, k = (w.program.weight(name, rows=4) for name in "qk")
    return w.program.score(w.program.matmul(q, w.x1), w.program.matmul(k, w.x2))


_MIXES = "use a function that attncheck knows, or one of attncheck.layers.program.mixes"


@pytest.mark.parametrize(
    ("write", "statement", "reason"),
    [
        (allowed, CoverageKind.SCORE, ""),
        (shared_query, CoverageKind.SCORE, ""),
        (crossed, CoverageKind.SCORE, ""),
        (chain, CoverageKind.SCORE, ""),
        (tied, CoverageKind.TIED, "Q is on both sides; give the score two matrices"),
        (
            value_is_key,
            CoverageKind.EXTRA_USE,
            "K also makes g5, which is in no score; give that one a separate matrix",
        ),
        (
            circular,
            CoverageKind.CIRCULAR,
            "x3 depends on g3, a product with Q, a matrix of scores; give g6 other inputs",
        ),
        (
            own_product,
            CoverageKind.CIRCULAR,
            "x3 depends on g3, a product with Q, a matrix of scores; give g5 other inputs",
        ),
        (unbounded, CoverageKind.UNBOUNDED, "x3 is not a bounded function; clip it"),
        (straight_from_initial, CoverageKind.UNBOUNDED, "h is not a bounded function; clip it"),
        (undeclared, CoverageKind.UNDECLARED, "use a function that attncheck knows, or attncheck.declared"),
        (unbounded_cycle, CoverageKind.UNBOUNDED, "x3 is not a bounded function; clip it"),
        (undeclared_cycle, CoverageKind.UNDECLARED, "use a function that attncheck knows, or attncheck.declared"),
        (discontinuous, CoverageKind.UNDECLARED, _MIXES),
        (after_an_output, CoverageKind.UNDECLARED, _MIXES),
        (discontinuous_row, CoverageKind.UNDECLARED, _MIXES),
        (bounded_of_several, CoverageKind.SCORE, ""),
        (partly_unbounded, CoverageKind.UNBOUNDED, "x3 is not a bounded function; clip it"),
        (independent_cycle, CoverageKind.SCORE, ""),
        (mixed, CoverageKind.OUTPUT, ""),
        (product, CoverageKind.OUTPUT, ""),
        (still, CoverageKind.ZERO, "g3 is 0"),
        (no_factor, CoverageKind.ZERO, "its factor is 0"),
        (no_weight, CoverageKind.ZERO, "g4 is 0"),
        (cancelled, CoverageKind.ZERO, "g5 is 0"),
        (mostly_zero, CoverageKind.SCORE, ""),
        (small_values, CoverageKind.FIXED_SIZE, "g3 has 4 coordinates"),
        (cycle, CoverageKind.CYCLIC, "the matrices A · C · B form a cycle"),
        (later, CoverageKind.CONJECTURE, "y1 depends on scores"),
        (score_of_scores, CoverageKind.CONJECTURE, "x3 depends on scores"),
        (low_rank, CoverageKind.FIXED_SIZE, "g3 has 4 coordinates"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_boundary(write: Callable[[Written], Node], statement: CoverageKind, reason: str) -> None:
    w = Written()
    assert w.of(write(w)) == (statement, reason)


def test_outputs_take_over_what_speaks_against_their_scores() -> None:
    w = Written()
    good = w.program.output(sigmoid_mix, [w.apply("V", w.x1)], [w.score("Q", "K")])
    assert w.of(good)[0] == CoverageKind.OUTPUT
    assert w.program.coverage().proved
    bad = w.program.output(sigmoid_mix, [w.apply("V", w.x1)], [tied(w)])
    assert w.of(bad)[0] == CoverageKind.TIED
    found = w.program.coverage()
    # Q makes vectors of the tied score, but these are in a score: the earlier statement holds.
    assert found.of(good.name).statement == CoverageKind.OUTPUT
    assert not found.proved
    assert not found.has_limit
    assert found.worst.statement == CoverageKind.TIED


def test_statements_are_ordered_from_proved_to_refuted() -> None:
    proved = [statement for statement in CoverageKind if statement.proved]
    stated = [statement for statement in CoverageKind if statement.has_limit and not statement.proved]
    none = [statement for statement in CoverageKind if not statement.has_limit]
    assert {*proved, *stated, *none} == set(CoverageKind)
    assert len(none) == 4
    # The worst status is reported: proofs do not outrank gaps.
    assert list(CoverageKind) == [*proved, *stated, *none]


def test_layers_are_covered_as_the_paper_says() -> None:
    def of(layer: AttentionLayer) -> Coverage:
        return expand(layer).program.coverage()

    assert of(AttentionLayer(width=8)).proved
    assert of(AttentionLayer(width=8, num_heads=4, num_kv_heads=2, mask="causal")).proved
    for layer, statement in [
        (AttentionLayer(width=8, activation="relu"), CoverageKind.UNBOUNDED),
        (AttentionLayer(width=8, head_dim=4), CoverageKind.FIXED_SIZE),
    ]:
        found = of(layer)
        assert found.worst.statement == statement
        assert found.has_limit
        assert not found.proved


def test_text_has_a_line_for_each_line() -> None:
    w = Written()
    score = tied(w)
    lines = str(w.program.coverage()).splitlines()
    assert len(lines) == len(w.program.nodes)
    assert lines[0] == "h: Fact 1"
    assert lines[-1] == f"{score.name}: violates Assumption 1 (b) (Q is on both sides; give the score two matrices)"
