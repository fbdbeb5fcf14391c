"""Coverage of a program by the paper: Assumption 1 checked line by line, without drawing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_choice
from attncheck.layers.nonlinearity import DeclaredMix, Nonlinearity
from attncheck.layers.program.functions import LinearCombination, PerArgumentFunction
from attncheck.layers.program.lines import Lines
from attncheck.layers.program.mixes import MIXES, AttentionRow
from attncheck.layers.program.moments import Moments, ancestors_of
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Output, Score, Weight, defined_by

# Relative rounding error of moments.
_ROUNDING: Final = 1e-12
# Pseudo-Lipschitz functions of several arguments besides `MIXES`. Lemma 7 covers products.
_OF_SEVERAL = (np.add, np.subtract, np.multiply, np.maximum, np.minimum)


class CoverageKind(StrEnum):
    """The kinds of statement that the paper makes about a line of a program, from the strongest to the weakest."""

    NETSOR = "Fact 1"
    SCORE = "Proposition 8"
    OUTPUT = "Theorem 1, Corollary 2"
    CYCLIC = "converges at rate n^{-1/2}: three scores share matrices in a cycle"
    ZERO = "limit stated, but a score has variance 0"
    UNBOUNDED = "limit stated for bounded functions (which the authors say is not essential)"
    UNDECLARED = "limit stated for pseudo-Lipschitz functions, and φ is not known to be one"
    FIXED_SIZE = "limit stated for sizes that grow with n: at a fixed size a difference from the limit remains"
    CONJECTURE = "conjecture: scores feed a later MatMul"
    EXTRA_USE = "violates Assumption 1 (a)"
    TIED = "violates Assumption 1 (b)"
    CIRCULAR = "violates Assumption 1: circular"

    @property
    def has_limit(self) -> bool:
        """Whether Definition 1 gives a limit variable."""
        return self not in (CoverageKind.CONJECTURE, CoverageKind.EXTRA_USE, CoverageKind.TIED, CoverageKind.CIRCULAR)

    @property
    def proved(self) -> bool:
        """Whether the paper proves convergence to the limit variable."""
        return self in (CoverageKind.NETSOR, CoverageKind.SCORE, CoverageKind.OUTPUT, CoverageKind.CYCLIC)


@dataclasses.dataclass(frozen=True)
class LineCoverage:
    """The paper's statement about one line.

    It is the weakest of the statements that apply to the line itself or to one of its ancestors.

    Attributes
    ----------
    name : str
    statement : CoverageKind
    reason : str
        The line or weight that weakens the statement, and a remedy; empty if there is none.
    """

    name: str
    statement: CoverageKind
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.statement}" + (f" ({self.reason})" if self.reason else "")


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The paper's statements about a program, line by line.

    Attributes
    ----------
    lines : tuple of LineCoverage
        In program order.
    """

    lines: tuple[LineCoverage, ...]

    @property
    def worst(self) -> LineCoverage:
        """The first line with the weakest statement."""
        order = list(CoverageKind)
        return max(self.lines, key=lambda line: order.index(line.statement))

    @property
    def has_limit(self) -> bool:
        """Whether every line has a limit variable."""
        return all(line.statement.has_limit for line in self.lines)

    @property
    def proved(self) -> bool:
        """Whether the paper proves convergence for every line."""
        return all(line.statement.proved for line in self.lines)

    def of(self, name: str) -> LineCoverage:
        """Return the coverage of the line called `name`."""
        names = tuple(line.name for line in self.lines)
        return self.lines[names.index(check_choice("name", name, names))]

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


def coverage(program: Lines) -> Coverage:
    """Return the paper's statement about each line of a program.

    - Vectors without scores are Netsor variables: averages over their coordinates converge (Fact 1).
    - Scores converge jointly to centred Gaussians (Proposition 8), and outputs converge with them (Theorem 1,
      Corollary 2), under Assumption 1. Score i is the product of g^{i,1} and g^{i,2}, with g^{i,j} = W^{i,j} x^{i,j}.
      The assumption is that each x^{i,j} is a bounded pseudo-Lipschitz function of vectors that depend on none of the
      W^{i,j}; that (a) the W^{i,j} multiply no vectors outside scores; and that (b) no score has the same matrix on
      both sides. In addition, all functions must be pseudo-Lipschitz, and all vectors must have n coordinates.
    - A score with a zero vector is 0 at every width.
    - Three scores whose matrices form a cycle, A·B, B·C, C·A, converge at rate n^{-1/2}, like their joint third moment,
      unless the two vectors that one of the matrices multiplies are uncorrelated in the limit.
    - A MatMul of a vector that depends on scores is beyond the paper.

    Examples
    --------
    >>> from attncheck.layers.nonlinearity import clip
    >>> program = Lines()
    >>> W, Q, K = (program.weight(name) for name in "WQK")
    >>> x = program.nonlin(clip(3.0), program.matmul(W, program.initial("h")))
    >>> p = program.score(program.matmul(Q, x), program.matmul(K, x))
    >>> coverage(program).of(p.name).statement
    <CoverageKind.SCORE: 'Proposition 8'>
    >>> tied = program.score(program.matmul(Q, x), program.matmul(Q, x))
    >>> print(coverage(program).of(tied.name))
    p2: violates Assumption 1 (b) (Q is on both sides; give the score two matrices)
    """
    nodes = program.lines()
    findings, after = _local_findings(nodes), defined_by(nodes, lambda node: isinstance(node, Score))
    by_node: dict[Node, LineCoverage] = {}
    order = list(CoverageKind)
    for node in nodes:
        # A line inherits weaker statements from the lines that it uses.
        inherited = [by_node[parent] for parent in node.parents if _passes_on(by_node[parent].statement)]
        candidates = [_basis(node, after), *findings.get(node, []), *inherited]
        worst = max(candidates, key=lambda line: order.index(line.statement))
        by_node[node] = dataclasses.replace(worst, name=node.name)
    return Coverage(tuple(by_node.values()))


def _passes_on(statement: CoverageKind) -> bool:
    """Return whether the lines that depend on a line inherit its statement."""
    return statement not in (CoverageKind.NETSOR, CoverageKind.SCORE, CoverageKind.OUTPUT)


def _basis(node: Node, after: set[Node]) -> LineCoverage:
    """Return the strongest statement that the paper makes about lines like this one.

    `after` contains the lines that depend on scores.
    """
    if isinstance(node, Score):
        return LineCoverage(node.name, CoverageKind.SCORE)
    output = isinstance(node, Output) or node in after
    return LineCoverage(node.name, CoverageKind.OUTPUT if output else CoverageKind.NETSOR)


def _local_findings(nodes: Sequence[Node]) -> dict[Node, list[LineCoverage]]:
    """Return, for each line, the weaker statements that apply because of the line itself, not of its ancestors."""
    scores = [node for node in nodes if isinstance(node, Score)]
    sides = {side for score in scores for side in score.parents}
    of_scores = {side.weight for side in sides if isinstance(side, MatMul)}
    after = defined_by(nodes, lambda node: isinstance(node, Score))
    # Leave out scores: for lines that depend on a matrix through scores only, the finding is `CoverageKind.CONJECTURE`.
    vectors = [node for node in nodes if not isinstance(node, Score)]
    dependents = defined_by(vectors, lambda node: isinstance(node, MatMul) and node.weight in of_scores)
    extra = {node.weight: node for node in nodes if isinstance(node, MatMul) and node not in sides}
    cyclic = _cycles(scores, _correlations(nodes, after))
    zero = zero_lines(nodes)

    def findings(node: Node) -> Iterator[LineCoverage]:
        if isinstance(node, MatMul) and node.parents[0] in after:
            yield LineCoverage(node.name, CoverageKind.CONJECTURE, f"{node.parents[0].name} depends on scores")
        if isinstance(node, Nonlin | Output) and not _known(node.function):
            remedy = "use a function that attncheck knows, or declare it: attncheck.declared(φ, order=…, bounded=…)"
            yield LineCoverage(node.name, CoverageKind.UNDECLARED, remedy)
        if node.size is not None and not isinstance(node, Score):
            yield LineCoverage(node.name, CoverageKind.FIXED_SIZE, f"{node.name} has {node.size} coordinates")
        if isinstance(node, Score):
            yield from _of_score(node, extra, dependents)
            if node in zero:
                yield LineCoverage(node.name, CoverageKind.ZERO, _why_zero(node, zero))
            if node in cyclic:
                around = " · ".join(weight.name for weight in cyclic[node])
                yield LineCoverage(node.name, CoverageKind.CYCLIC, f"the matrices {around} form a cycle")

    return {node: list(findings(node)) for node in nodes}


def _of_score(score: Score, extra: dict[Weight, MatMul], dependents: set[Node]) -> Iterator[LineCoverage]:
    """Yield a finding for each condition of Assumption 1 that a score does not meet.

    `extra` maps a weight to a product with it that is in no score. `dependents` contains the vectors that are, or
    depend on, a product with a matrix of a score.
    """
    first, second = _sides(score)
    if first.weight is second.weight:
        tied = f"{first.weight.name} is on both sides; give the score two matrices"
        yield LineCoverage(score.name, CoverageKind.TIED, tied)
    for side in (first, second):
        if side.weight in extra:
            problem = f"{side.weight.name} also makes {extra[side.weight].name}, which is in no score"
            yield LineCoverage(score.name, CoverageKind.EXTRA_USE, f"{problem}; give that one a separate matrix")
        source = side.parents[0]
        if source in dependents:
            maker = _first_defined(source, dependents)
            circular = f"{source.name} depends on {maker.name}, a product with {maker.weight.name}, a matrix of scores"
            yield LineCoverage(score.name, CoverageKind.CIRCULAR, f"{circular}; give {side.name} other inputs")
        if not _bounded(source):
            unbounded = f"{source.name} is not a bounded function"
            yield LineCoverage(score.name, CoverageKind.UNBOUNDED, f"{unbounded}; clip it")


def _why_zero(score: Score, zero: set[Node]) -> str:
    still = [side.name for side in score.parents if side in zero]
    return f"{still[0]} is 0" if still else "its factor is 0"


def _first_defined(node: Node, dependents: set[Node]) -> MatMul:
    """Follow parents that are in `dependents` back from `node`, and return the last line reached, a MatMul."""
    for parent in node.parents:
        if parent in dependents:
            return _first_defined(parent, dependents)
    assert isinstance(node, MatMul)
    return node


def _known(function: Any) -> bool:
    """Return whether a function is known or declared pseudo-Lipschitz."""
    if isinstance(function, PerArgumentFunction):
        function = function.function
    if isinstance(function, AttentionRow):
        return not function.layer.map.traits.may_jump
    if isinstance(function, Nonlinearity | DeclaredMix | LinearCombination):
        return True
    return any(function is candidate for candidate in (*MIXES.values(), *_OF_SEVERAL))


def _bounded(node: Node) -> bool:
    """Return whether a line is bounded.

    A line is bounded if its function is, or if its function is known, hence continuous, and all its arguments are
    bounded.
    """
    if not isinstance(node, Nonlin):
        return False
    if isinstance(node.function, Nonlinearity | DeclaredMix) and node.function.bounded:
        return True
    return _known(node.function) and all(map(_bounded, node.parents))


def _cycles(
    scores: Sequence[Score], correlated: Callable[[Node, Node], bool]
) -> dict[Score, tuple[Weight, Weight, Weight]]:
    """Return the three matrices A, B, C of each score that belongs to a triangle of scores A·B, B·C, C·A.

    A triangle counts only if the joint third moment of its scores is of order n^{-1/2}. This moment is n^{-1/2} times
    a product over the three matrices, with the factor E[x x'] for the two vectors x and x' that a matrix multiplies.
    """
    edges: dict[frozenset[Weight], list[Score]] = {}
    for score in scores:
        pair = frozenset(side.weight for side in _sides(score))
        if len(pair) == 2:
            edges.setdefault(pair, []).append(score)
    neighbours: dict[Weight, set[Weight]] = {}
    for pair in edges:
        for one, two in itertools.permutations(pair, 2):
            neighbours.setdefault(one, set()).add(two)
    sources = {score: {side.weight: side.parents[0] for side in _sides(score)} for score in scores}
    triangles: dict[Score, tuple[Weight, Weight, Weight]] = {}
    for pair, members in edges.items():
        one, two = sorted(pair, key=lambda weight: weight.name)
        common = sorted(neighbours[one] & neighbours[two], key=lambda weight: weight.name)
        for score, third in itertools.product(members, common):
            pairs = itertools.product(edges[frozenset((two, third))], edges[frozenset((third, one))])
            for second, last in pairs:
                meetings = ((two, score, second), (third, second, last), (one, last, score))
                if all(correlated(sources[p][weight], sources[q][weight]) for weight, p, q in meetings):
                    triangles.setdefault(score, (one, two, third))
    return triangles


def _sides(score: Score) -> tuple[MatMul, ...]:
    return tuple(side for side in score.parents if isinstance(side, MatMul))


def _correlations(nodes: Sequence[Node], after: set[Node]) -> Callable[[Node, Node], bool]:
    """Return a function of two lines x and x' that returns whether E[Z^x Z^x'] may differ from 0.

    It always returns True if one of the lines is in `after`, the lines that depend on scores.
    """
    moments = Moments()

    def correlated(one: Node, two: Node) -> bool:
        if one in after or two in after:
            return True
        needed = set(ancestors_of((one, two)))
        for node in nodes:
            if node in needed and isinstance(node, Initial | MatMul) and node not in moments.place:
                moments.add(node)
        with np.errstate(all="ignore"):
            value, squares = moments.second(one, two), [moments.second(node, node) for node in (one, two)]
        return bool(abs(value) > moments.error + _ROUNDING * np.sqrt(np.prod(squares)))

    return correlated


# Number of trial points, and the standard deviation of each. The largest exceeds all entries of Gaussian vectors.
_POINTS: Final = 64
_SIZES: Final = np.geomspace(1e-2, 256.0, _POINTS)


def zero_lines(nodes: Iterable[Node]) -> set[Node]:
    """Return the vectors and scores that are always 0, except for vectors that depend on scores.

    A vector counts as 0 if it is 0 at random trial points, which are drawn separately for each random vector.

    Examples
    --------
    >>> from attncheck.layers.program.lines import Lines
    >>> program = Lines()
    >>> h, still = program.initial("h"), program.initial("still", std=0.0)
    >>> W, U = (program.weight(name) for name in "WU")
    >>> p = program.score(program.matmul(W, program.nonlin(np.tanh, still)), program.matmul(U, h))
    >>> [node.name for node in program.nodes if node in zero_lines(program.nodes)]
    ['still', 'x1', 'g1', 'p1']
    """
    rng, tried, known = np.random.default_rng(0), dict[Node, FloatArray](), dict[Any, FloatArray]()

    def points(key: Any) -> FloatArray:
        return known.setdefault(key, _SIZES * rng.standard_normal(_POINTS))

    zero = set[Node]()
    for node in nodes:
        if isinstance(node, Score):
            if not node.factor or zero.intersection(node.parents):
                zero.add(node)
            continue
        if not all(parent in tried for parent in node.parents):
            continue
        values = _values(node, tried, points)
        if values is not None:
            tried[node] = values
            if not values.any():
                zero.add(node)
    return zero


def _values(node: Node, tried: dict[Node, FloatArray], points: Callable[[Any], FloatArray]) -> FloatArray | None:
    """Return the values of a vector at the trial points, or None if it depends on scores.

    `tried` contains the values of earlier vectors, and ``points(key)`` draws the trial points of a random vector.
    """
    if isinstance(node, Initial):
        parts = [root * points((node.group, k)) for k, root in enumerate(node.root)]
        return np.asarray(node.mean + sum(parts, np.zeros(_POINTS)))
    if isinstance(node, MatMul):
        vector = tried[node.parents[0]]
        alive = bool(node.weight.std) and vector.any()
        return points((node.weight, vector.tobytes())) if alive else np.zeros(_POINTS)
    if isinstance(node, Nonlin):
        with np.errstate(all="ignore"):
            result = np.asarray(node.function(*(tried[parent][None] for parent in node.parents)), dtype=np.float64)
        return result.reshape(_POINTS)
    return None
