"""Requirements of checks and faults on programs."""

from __future__ import annotations

import numpy as np

from attncheck.layers.nonlinearity import tanh
from attncheck.layers.program import Initial, LinearCombination, MatMul, Node, Nonlin, Output, Program, Score
from attncheck.layers.program.functions import PerArgumentFunction
from attncheck.layers.program.mixes import sigmoid_mix
from attncheck.layers.requirement import Requirement

OfProgram = Requirement[Program]
_GATES = PerArgumentFunction(sigmoid_mix)


def uses_of(program: Program) -> list[MatMul]:
    """Return the MatMuls of a program whose matrices are not 0."""
    return [node for node in program.nodes if isinstance(node, MatMul) and node.weight.std > 0]


def replaceable(node: Node) -> bool:
    """Return whether a line applies a nonlinearity, other than tanh, to one vector."""
    if not isinstance(node, Nonlin) or isinstance(node.function, LinearCombination):
        return False
    return len(node.parents) == 1 and node.function not in (tanh(), np.tanh)


def _correlated(program: Program) -> bool:
    covariances = [np.array(node.covariance) for node in program.nodes if isinstance(node, Initial)]
    return any((cov != np.diag(np.diagonal(cov))).any() for cov in covariances)


def _reused(program: Program) -> bool:
    pairs = {(node.weight, node.parents[0]) for node in uses_of(program)}
    return len(pairs) > len({weight for weight, _ in pairs})


def _two_of_a_shape(program: Program) -> bool:
    weights = {node.weight for node in uses_of(program)}
    return len({(weight.rows, weight.columns) for weight in weights}) < len(weights)


def _side_by_side(program: Program) -> bool:
    """Return whether two matrices of the same shape multiply the same vector."""
    sides = {(node.parents[0], node.weight) for node in uses_of(program)}
    shapes = {(vector, weight.rows, weight.columns) for vector, weight in sides}
    return len(shapes) < len(sides)


def _moving(program: Program) -> bool:
    """Return whether matrices with the same number of columns multiply at least two different vectors."""
    previous: dict[int | None, Node] = {}
    for node in uses_of(program):
        if previous.setdefault(node.weight.columns, node.parents[0]) is not node.parents[0]:
            return True
    return False


def _is_sum(node: Node) -> bool:
    return isinstance(node, Nonlin) and isinstance(node.function, LinearCombination) and len(node.parents) > 1


RANDOM_START = OfProgram(
    "a random initial vector",
    lambda program: any(isinstance(node, Initial) and any(node.root) for node in program.nodes),
    "no initial vector is random",
)
CORRELATED_START = OfProgram("correlated initial vectors", _correlated, "initial vectors are independent")
SOME_MATRIX = OfProgram("a matrix", lambda program: bool(uses_of(program)), "the program has no matrix")
SEVERAL_MATRICES = OfProgram("two matrices of one shape", _two_of_a_shape, "no two matrices have one shape")
REUSED_MATRIX = OfProgram("a matrix applied to several vectors", _reused, "no matrix multiplies two vectors")
SIDE_BY_SIDE = OfProgram(
    "two matrices applied to one vector", _side_by_side, "no two matrices of the same shape multiply the same vector"
)
MOVING_VECTORS = OfProgram(
    "matrices applied to several vectors", _moving, "matrices with equally many columns all multiply the same vector"
)
SOME_FUNCTION = OfProgram(
    "a function",
    lambda program: any(isinstance(node, Nonlin | Output) for node in program.nodes),
    "the program has no functions",
)
SOME_NONLINEARITY = OfProgram(
    "a nonlinearity",
    lambda program: any(isinstance(node, Nonlin) for node in program.nodes),
    "the program has no nonlinearity",
)
NOT_TANH = OfProgram(
    "a nonlinearity other than tanh",
    lambda program: any(map(replaceable, program.nodes)),
    "the program has no nonlinearity other than tanh",
)
SOME_SUM = OfProgram(
    "a sum of vectors", lambda program: any(map(_is_sum, program.nodes)), "no line is a sum of vectors"
)
SOME_SCORE = OfProgram(
    "a score",
    lambda program: any(isinstance(node, Score) and bool(node.factor) for node in program.nodes),
    "the program has no scores",
)
SEVERAL_SCORES = OfProgram(
    "several scores",
    lambda program: sum(isinstance(node, Score) for node in program.nodes) > 1,
    "the program has at most one score",
)
LIMIT_OF_SCORES = SOME_SCORE & OfProgram(
    "a limit", lambda program: program.coverage().has_limit, "the program has no limit to draw from"
)
MIXED_OUTPUT = OfProgram(
    "an output of scores",
    lambda program: any(isinstance(node, Output) and bool(node.scores) for node in program.nodes),
    "no output takes scores",
)
GATED_OUTPUT = OfProgram(
    "gates",
    lambda program: any(isinstance(node, Output) and node.function == _GATES for node in program.nodes),
    "no output has sigmoid gates, and softmax hardly changes if all scores change their sign",
)
