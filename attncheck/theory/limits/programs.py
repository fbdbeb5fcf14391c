"""Limit of a program by Definition 1: jointly Gaussian vectors, and jointly Gaussian scores independent of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray, slices
from attncheck._lib.errors import check_draws, check_integer, refuse
from attncheck._lib.text import first_few
from attncheck.layers.draws import ProgramDraws
from attncheck.layers.expectation import expectation, normal_points
from attncheck.layers.kernel import psd_root
from attncheck.layers.program import Initial, MatMul, Node, Program, Score
from attncheck.layers.program.extent import results_of, vectors_of
from attncheck.layers.program.moments import Moments, ancestors_of, bases_of, value_of

# Maximum number of array entries per block.
_ENTRIES = 2**21


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramLimit:
    """Limit variables of a program: Z^h for each vector h, and p° for each score.

    Attributes
    ----------
    program : Program
    lines : tuple of Node
        Gaussian lines (initial vectors, MatMul outputs) in program order.
    mean : ndarray, shape (m,)
        E Z of the lines.
    covariance : ndarray, shape (m, m)
        Covariance of the lines, by Definition 1 (i), (ii).
    scores : tuple of Score
    score_covariance : ndarray, shape (r, r)
        Cov(p°_i, p°_k), by Definition 1 (iv). Scores are independent of every Z.
    error : float
        Maximum error of second moments: 0 if exact, an estimate with quadrature.

    Examples
    --------
    >>> from attncheck.layers.nonlinearity import relu
    >>> program = Program()
    >>> W, Q, K = (program.weight(name) for name in "WQK")
    >>> x = program.nonlin(relu(), program.matmul(W, program.initial("h")))
    >>> p = program.score(program.matmul(Q, x), program.matmul(K, x))
    >>> limit_of_program(program).score_covariance.round(12)
    array([[0.25]])
    """

    program: Program
    lines: tuple[Node, ...]
    mean: FloatArray
    covariance: FloatArray
    scores: tuple[Score, ...]
    score_covariance: FloatArray
    error: float
    _moments: Moments = dataclasses.field(repr=False)

    def __str__(self) -> str:
        """Return the mean, variance and correlations of lines and scores."""
        lines, scores = [f"Z({line.name})" for line in self.lines], [score.name for score in self.scores]
        variances = zip(lines, self.mean, np.diag(self.covariance), strict=True)
        parts = [f"{name}: mean {mean:.4g}, variance {variance:.4g}" for name, mean, variance in variances]
        parts += _correlations(lines, self.covariance, self.error)
        parts += [f"{name}: variance {v:.4g}" for name, v in zip(scores, np.diag(self.score_covariance), strict=True)]
        return "\n".join([*parts, *_correlations(scores, self.score_covariance, self.error)])

    def second(self, one: Node | str, other: Node | str) -> float:
        """Return E[Z^x Z^x'], the limit of (1/n) Σ_α x_α x'_α (Fact 1), for two vectors x = `one` and x' = `other`.

        Each vector is given as a line of the program or by its name, and must not depend on scores.
        """
        vectors = self._vectors(one, other)
        for node in vectors:
            if _enters(node, Score):
                refuse("vector", node.name, "depends on scores", "use conditional_square for such lines")
        return self._moments.second(*vectors)

    def conditional_square(self, vector: Node | str, scores: FloatArray) -> FloatArray:
        """Return E[(Z^h)² | p°], the limit of (1/n) Σ h_α² (Theorem 1), for given scores.

        Parameters
        ----------
        vector : Node or str
            A line of the program, or its name.
        scores : ndarray, shape (size, r)
            Values of p°.

        Returns
        -------
        ndarray, shape (size,)
            By quadrature over the Gaussian lines: accurate to about 1e-9 for smooth functions of up to two lines, and
            to a relative error of about 1e-3 for more.
        """
        (node,), scores = self._vectors(vector), self._checked(scores)
        bases = bases_of([node])
        indices = [self.lines.index(line) for line in bases]
        points, weights = normal_points(self.covariance[np.ix_(indices, indices)])
        known = {line: (self.mean[k] + z)[None] for line, k, z in zip(bases, indices, points, strict=True)}
        parts = []
        for part in slices(len(scores), _ENTRIES // max(1, len(weights) * len(self.program.nodes))):
            columns = scores[part].T
            score_values: dict[Node, FloatArray] = dict(zip(self.scores, columns, strict=True))
            spread = {line: np.broadcast_to(z, (columns.shape[1], z.shape[1])) for line, z in known.items()}
            parts.append(value_of(node, spread, score_values) ** 2 @ weights)
        return np.concatenate(parts)

    def draw(self, size: int, coordinates: int, rng: np.random.Generator) -> ProgramDraws:
        """Draw the program's results and scores from the limit (Corollary 2).

        Parameters
        ----------
        size : int
            Number of draws.
        coordinates : int
            Number of neurons, i.i.d. given a draw's shared scores.
        rng : numpy.random.Generator

        Returns
        -------
        ProgramDraws
        """
        z = self._root @ rng.standard_normal((size, self._root.shape[1], coordinates)) + self.mean[:, None]
        scores = rng.standard_normal((size, self._score_root.shape[1])) @ self._score_root.T
        known = dict(zip(self.lines, np.moveaxis(z, 1, 0), strict=True))
        drawn: dict[Node, FloatArray] = dict(zip(self.scores, scores.T, strict=True))
        results = [value_of(node, known, drawn) for node in results_of(self.program)]
        return ProgramDraws(outputs=np.stack(results, axis=1), scores=scores)

    def sample(self, size: int, seed: int = 0, coordinates: int = 1) -> ProgramDraws:
        """Draw from the limit with a seed; see `draw`."""
        size = check_draws("size", size, 1, "pass the number of draws, e.g. size=1000")
        coordinates = check_integer("coordinates", coordinates, 1, "pass how many neurons to return")
        seed = check_integer("seed", seed, 0, "pass a whole number, e.g. seed=0")
        return self.draw(size, coordinates, np.random.default_rng(seed))

    def average(
        self, psi: Callable[..., FloatArray], vectors: Sequence[Node | str], scores: FloatArray
    ) -> tuple[FloatArray, float]:
        """Return E[ψ(Z^{h¹}, …, Z^{hᵏ}) | p°], the limit of the averages in Theorem 1, for given scores.

        Parameters
        ----------
        psi : callable
            Takes one array per vector, coordinatewise.
        vectors : sequence of Node or str
            Lines of the program, or their names.
        scores : ndarray, shape (size, r)
            Values of p°.

        Returns
        -------
        values : ndarray, shape (size,)
        error : float
            Largest quadrature error estimate.
        """
        scores = self._checked(scores)
        if isinstance(vectors, str | Node) or not vectors:
            refuse("vectors", vectors, "is not a list of lines", "pass a list of the lines that psi takes")
        lines = self._vectors(*vectors)
        bases = bases_of(lines)
        indices = [self.lines.index(node) for node in bases]

        def of_one(scores_of_one: FloatArray) -> tuple[float, float]:
            score_values: dict[Node, FloatArray] = dict(zip(self.scores, scores_of_one[:, None], strict=True))

            def value(z: FloatArray) -> FloatArray:
                known = dict(zip(bases, z[:, None], strict=True))
                values: FloatArray = np.asarray(psi(*(value_of(node, known, score_values) for node in lines)))
                first: FloatArray = values[0]
                return first

            return expectation(value, self.mean[indices], self.covariance[np.ix_(indices, indices)])

        averages = [of_one(row) for row in scores]
        return np.array([value for value, _ in averages]), max(error for _, error in averages)

    def _vectors(self, *lines: Node | str) -> list[Node]:
        """Return lines, given as nodes or names, as nodes; raise `InputError` unless all are vectors of the program."""
        named = {node.name: node for node in self.program.nodes}
        nodes: list[Node] = []
        for line in lines:
            node = named.get(line) if isinstance(line, str) else line
            if isinstance(node, Score):
                remedy = "pass lines that are vectors; for scores, see score_covariance"
                refuse("vector", node.name, "is a score", remedy)
            if not isinstance(node, Node) or not {*bases_of([node])} <= {*self.lines}:
                names = first_few(vector.name for vector in vectors_of(self.program))
                refuse("vector", line, "is not a vector of this limit's program", f"pass one, such as {names}")
            nodes.append(node)
        return nodes

    def _checked(self, scores: FloatArray) -> FloatArray:
        """Return scores as an array (size, r), or raise InputError."""
        values = np.asarray(scores, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.scores) or not len(values):
            problem = f"must have shape (size, {len(self.scores)}), with one row or more"
            refuse("scores", values.shape, problem, "pass draws of the scores")
        return values

    @functools.cached_property
    def _root(self) -> FloatArray:
        return psd_root(self.covariance)

    @functools.cached_property
    def _score_root(self) -> FloatArray:
        return psd_root(self.score_covariance)


def _correlations(names: Sequence[str], covariance: FloatArray, error: float) -> list[str]:
    """Return the correlation of each pair of names whose covariance exceeds the error, as a line of text."""
    stds = np.sqrt(np.diag(covariance))
    return [
        f"corr({names[k]}, {one}): {covariance[i, k] / (stds[i] * stds[k]):.4g}"
        for i, one in enumerate(names)
        for k in range(i)
        if abs(covariance[i, k]) > error
    ]


def limit_of_program(program: Program) -> ProgramLimit:
    """Return the limit of a program by Definition 1.

    Raises
    ------
    InputError
        If there is no limit, naming the line, the clause of Assumption 1 and a remedy.
    """
    covered = program.coverage()
    if not covered.has_limit:
        worst = covered.worst
        refuse("program", worst.name, f"has no limit: {worst.statement}, {worst.reason}", "see program.coverage()")
    moments = Moments()
    for node in program.nodes:
        if isinstance(node, Initial | MatMul):
            moments.add(node)
    scores = tuple(node for node in program.nodes if isinstance(node, Score))
    lines = tuple(moments.place)
    return ProgramLimit(
        program,
        lines,
        np.array([node.mean if isinstance(node, Initial) else 0.0 for node in lines]),
        moments.covariance,
        scores,
        _score_covariance(scores, moments),
        moments.error,
        moments,
    )


def _score_covariance(scores: Sequence[Score], moments: Moments) -> FloatArray:
    """Return Cov(p°_i, p°_k) for all pairs of scores by Isserlis' formula; it is 0 unless the scores share matrices."""

    def shared(first: Node, second: Node) -> float:
        same = isinstance(first, MatMul) and isinstance(second, MatMul) and first.weight is second.weight
        return float(moments.covariance[moments.place[first], moments.place[second]]) if same else 0.0

    covariance = np.zeros((len(scores), len(scores)))
    for i, first in enumerate(scores):
        for k, second in enumerate(scores[: i + 1]):
            (a, b), (c, d) = first.parents, second.parents
            value = shared(a, c) * shared(b, d) + shared(a, d) * shared(b, c)
            covariance[i, k] = covariance[k, i] = first.factor * second.factor * value
    return covariance


def _enters(node: Node, kind: type[Node]) -> bool:
    """Return whether a line depends on a line of class `kind`."""
    return any(isinstance(line, kind) for line in ancestors_of([node]) if line is not node)
