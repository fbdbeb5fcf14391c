"""In which programs a fault can be seen."""

from __future__ import annotations

import numpy as np

from attncheck.layers.nonlinearity import tanh
from attncheck.layers.program import Initial, LinearCombination, MatMul, Node, Nonlin, Output, Program, Score


def random_start(program: Program) -> bool | str:
    """See it where an initial vector is random."""
    random = any(isinstance(node, Initial) and any(node.root) for node in program.nodes)
    return random or "no initial vector is random"


def correlated_start(program: Program) -> bool | str:
    """See it where initial vectors are correlated."""
    covariances = [np.array(node.covariance) for node in program.nodes if isinstance(node, Initial)]
    correlated = any((cov != np.diag(np.diagonal(cov))).any() for cov in covariances)
    return correlated or "initial vectors are independent"


def _uses(program: Program) -> list[MatMul]:
    """Return the lines in which a matrix that is not 0 multiplies."""
    return [node for node in program.nodes if isinstance(node, MatMul) and node.weight.std > 0]


def some_matrix(program: Program) -> bool | str:
    """See it where a matrix multiplies."""
    return bool(_uses(program)) or "the program has no matrix"


def reused_matrix(program: Program) -> bool | str:
    """See it where a matrix makes several vectors."""
    pairs = {(node.weight, node.parents[0]) for node in _uses(program)}
    return len(pairs) > len({weight for weight, _ in pairs}) or "every matrix makes one vector only"


def matrices_side_by_side(program: Program) -> bool | str:
    """See it where two matrices of one shape are applied to one vector: images of different ones differ anyway."""
    sides = {(node.parents[0], node.weight) for node in _uses(program)}
    shapes = {(vector, weight.rows, weight.columns) for vector, weight in sides}
    return len(shapes) < len(sides) or "no two matrices of one shape are applied to one vector"


def replaceable(node: Node) -> bool:
    """Whether a line is a nonlinearity of one vector other than tanh."""
    if not isinstance(node, Nonlin) or isinstance(node.function, LinearCombination):
        return False
    return len(node.parents) == 1 and node.function not in (tanh(), np.tanh)


def other_nonlinearity(program: Program) -> bool | str:
    """See it where a nonlinearity is another than tanh."""
    return any(map(replaceable, program.nodes)) or "the program has no nonlinearity but tanh"


def some_nonlinearity(program: Program) -> bool | str:
    """See it where there is a nonlinearity."""
    return any(isinstance(node, Nonlin) for node in program.nodes) or "the program has no nonlinearity"


def _is_sum(node: Node) -> bool:
    """Return whether a line adds vectors."""
    return isinstance(node, Nonlin) and isinstance(node.function, LinearCombination) and len(node.parents) > 1


def some_sum(program: Program) -> bool | str:
    """See it where vectors are added."""
    return any(map(_is_sum, program.nodes)) or "no line is a sum of vectors"


def some_score(program: Program) -> bool | str:
    """See it where there are scores."""
    return any(isinstance(node, Score) and node.factor for node in program.nodes) or "the program has no scores"


def several_scores(program: Program) -> bool | str:
    """See it where there are several scores."""
    return sum(isinstance(node, Score) for node in program.nodes) > 1 or "the program has one score at most"


def score_with_limit(program: Program) -> bool | str:
    """See it where scores have a limit."""
    return some_score(program) if program.coverage().has_limit else "the program has no limit to draw from"


def mixed_output(program: Program) -> bool | str:
    """See it where an output takes scores."""
    return any(isinstance(node, Output) and node.scores for node in program.nodes) or "no output takes scores"
