"""Sums of a program's scores, t·p: given the inputs, a quadratic form of normals with a known law.

A score is n^{-1/2} Σ_α u_α w_α for vectors u = W x, w = W' x'. Given the Gram matrix G of all x, coordinates are
independent, and (u, w, …)_α is normal with covariance Σ(G): σ_W² G_xx' for a common matrix, else 0. So t·p = n^{-1/2}
Σ_α g_αᵀ M g_α, with characteristic function Π_k (1 - 2iτλ_k/√n)^{-n/2} for the eigenvalues λ of Σ^{1/2} M Σ^{1/2},
mean 0, variance q(G) = 2 Σ λ² and third cumulant 8 n^{-1/2} Σ λ³. If the third cumulant is not 0, as with three
scores that share matrices cyclically, the distance from the limit is of order n^{-1/2}, else 1/n.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.layers.program import Initial, MatMul, Node, Program, Score, Step
from attncheck.simulators.interpret import interpret
from attncheck.simulators.linalg import gram_of
from attncheck.simulators.multipliers import MatrixFreeMultiplier
from attncheck.theory.limits.expectation import expectation
from attncheck.theory.limits.programs import ProgramLimit, ancestors_of, bases_of, limit_of_program, value_of
from attncheck.theory.rates.drivers import symmetric_root
from attncheck.theory.rates.gap import largest, standard_error

ComplexArray = NDArray[np.complex128]

# Skewness below this counts as 0.
_NO_SKEW = 1e-9
# Range of the largest weight, so that fourth powers do not overflow.
_SMALLEST, _LARGEST = 1e-12, 1e12
# Logarithm below which a characteristic function is negligible.
_VANISHED = -28.0
# Maximum number of vector coordinates in memory, and of complex numbers per block.
_HELD, _BLOCK = 2**22, 2**20

#: Computable distances.
METRICS: tuple[str, ...] = ("ks", "w1", "tv")
# Step of the frequencies in units of 1/std, which gives a period of 80 std, and their number.
_STEP, _COUNT = np.pi / 40.0, 1024
# Range and spacing of points, in standard deviations.
REACH, SPACING = 12.0, 0.02


def frequencies(std: float) -> FloatArray:
    """Return frequencies for laws with this standard deviation."""
    return np.asarray((np.arange(_COUNT) + 0.5) * (_STEP / std))


def _offsets() -> FloatArray:
    """Return the points of comparison, in standard deviations."""
    steps = round(REACH / SPACING)
    return np.asarray(SPACING * np.arange(-steps, steps + 1), dtype=np.float64)


# The array takes 20 MB and is slow to compute, so it is cached.
@functools.lru_cache(maxsize=1)
def _waves() -> ComplexArray:
    """Return e^{-iτt}, (frequencies, points), at unit standard deviation."""
    waves = np.asarray(np.exp(-1j * np.outer(frequencies(1.0), _offsets())))
    waves.setflags(write=False)
    return waves


@dataclasses.dataclass(frozen=True, eq=False)
class CharacteristicGap:
    """Difference of the characteristic functions of two laws of mean 0.

    `std` is their approximate standard deviation. `difference`, (repetitions, frequencies), is complex, with one column
    for each of ``frequencies(std)``.
    """

    std: float
    difference: ComplexArray

    @functools.cached_property
    def points(self) -> FloatArray:
        """Points of comparison."""
        return np.asarray(self.std * _offsets(), dtype=np.float64)

    @functools.cached_property
    def _inverted(self) -> tuple[FloatArray, FloatArray]:
        """Differences of distribution functions and densities at `points`, (repetitions, points)."""
        tau, waves = frequencies(self.std), _waves()
        step = _STEP / self.std
        below = -(step / np.pi) * np.imag((self.difference / tau) @ waves)
        return below, (step / np.pi) * np.real(self.difference @ waves)

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return differences of distribution functions and of densities, (repetitions, points).

        The inversion is periodic, so points must lie within `REACH` standard deviations.
        """
        tau, step = frequencies(self.std), _STEP / self.std
        used = np.flatnonzero(np.any(self.difference != 0, axis=0))
        waves = np.exp(-1j * np.outer(tau[used], points))
        below = -(step / np.pi) * np.imag((self.difference[:, used] / tau[used]) @ waves)
        return below, (step / np.pi) * np.real(self.difference[:, used] @ waves)

    @property
    def cdf(self) -> FloatArray:
        """Difference of distribution functions at `points`, (repetitions, points)."""
        return self._inverted[0]

    def distance(self, metric: str) -> tuple[float, float]:
        """Return a distance and its error, four standard errors."""
        below, density = self._inverted
        spacing = self.std * SPACING
        if metric == "ks":
            value, replicates = largest(below)
            return value, standard_error(replicates)
        values = below if metric == "w1" else 0.5 * density
        replicates = spacing * (values @ np.sign(values.mean(axis=0)))
        return float(replicates.mean()), standard_error(replicates)


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreSum:
    """t·p, a sum of the scores of a program with weights t, the largest from 1e-12 to 1e12 in size."""

    program: Program
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        scores = self.limit.scores
        if not scores:
            refuse("program", self.program, "has no scores", "write some, e.g. program.score(q, k)")
        if len(self.weights) != len(scores):
            refuse("projection", self.weights, f"must have one number for each of {len(scores)} scores", "pass as many")
        largest = max(map(abs, self.weights))
        if largest and not _SMALLEST <= largest <= _LARGEST:
            problem = f"has the largest weight {largest:.3g}, which is not between {_SMALLEST:g} and {_LARGEST:g}"
            remedy = "rescale all of them: w1 scales with them, the other distances do not change"
            refuse("projection", self.weights, problem, remedy)
        for side in self._sides:
            if side.size is not None:
                refuse(
                    "program",
                    side.name,
                    "has a fixed size, which leaves a distance from the limit",
                    "leave out rows of its matrix",
                )
        makers = {side.weight for side in self._sides}
        for node in ancestors_of(self._inputs):
            if isinstance(node, Score) or (isinstance(node, MatMul) and node.weight in makers):
                problem = "is an input of a score that shares its matrix, or depends on a score"
                refuse("program", node.name, problem, "use separate matrices for the scores")
        if self.variance == 0.0:
            refuse("projection", self.weights, "gives a sum whose limit is 0", "pass other weights")

    @functools.cached_property
    def limit(self) -> ProgramLimit:
        """Limit of the program."""
        return limit_of_program(self.program)

    @functools.cached_property
    def _sides(self) -> list[MatMul]:
        found = dict.fromkeys(side for score in self.limit.scores for side in score.parents)
        return [side for side in found if isinstance(side, MatMul)]

    @functools.cached_property
    def _inputs(self) -> list[Node]:
        return list(dict.fromkeys(side.parents[0] for side in self._sides))

    @functools.cached_property
    def _from(self) -> list[int]:
        return [self._inputs.index(side.parents[0]) for side in self._sides]

    @functools.cached_property
    def _form(self) -> FloatArray:
        """Symmetric matrix M of the quadratic form."""
        form = np.zeros((len(self._sides), len(self._sides)))
        for weight, score in zip(self.weights, self.limit.scores, strict=True):
            i, j = (self._sides.index(side) for side in score.parents if isinstance(side, MatMul))
            form[i, j] += 0.5 * weight * score.factor
            form[j, i] += 0.5 * weight * score.factor
        return form

    @functools.cached_property
    def kernel(self) -> FloatArray:
        """Limit K of the Gram matrix G."""
        return np.array([[self.limit.second(one, other) for other in self._inputs] for one in self._inputs])

    def _covariances(self, grams: FloatArray) -> FloatArray:
        """Return the covariances Σ(G) of the scores' sides, linear in G, (draws, sides, sides)."""
        shared = np.array(
            [[one.weight.std**2 * (one.weight is other.weight) for other in self._sides] for one in self._sides]
        )
        return np.asarray(shared * grams[:, self._from][:, :, self._from])

    def eigenvalues(self, grams: FloatArray) -> FloatArray:
        """Return the eigenvalues λ of the quadratic form given G, (draws, sides)."""
        root = symmetric_root(self._covariances(grams))
        return np.asarray(np.linalg.eigvalsh(root @ self._form @ root))

    def products(self, one: FloatArray, other: FloatArray) -> FloatArray:
        """Return the bilinear form q(G, G') = 2 tr(M Σ(G) M Σ(G')), (draws,)."""
        left = self._form @ self._covariances(one)
        return np.asarray(2.0 * np.einsum("dij,dji->d", left, self._form @ self._covariances(other)))

    @functools.cached_property
    def variance(self) -> float:
        """Variance of the sum in the limit, where it is normal."""
        return float(self.products(self.kernel[None], self.kernel[None])[0])

    @property
    def std(self) -> float:
        """Standard deviation of the sum in the limit."""
        return math.sqrt(self.variance)

    @functools.cached_property
    def skewness(self) -> float:
        """√n times the skewness of the sum."""
        skew = 8.0 * float((self.eigenvalues(self.kernel[None]) ** 3).sum()) / self.std**3
        return skew if abs(skew) > _NO_SKEW else 0.0

    @property
    def order(self) -> float:
        """Order of the distance in n: -1/2 if the sum is skewed, else -1."""
        return -0.5 if self.skewness else -1.0

    @property
    def entries(self) -> int:
        """Number of vectors per draw of G."""
        return len(ancestors_of(self._inputs))

    def grams(self, width: int, size: int, rng: np.random.Generator) -> FloatArray:
        """Draw the inputs' Gram matrix G at a width, (size, inputs, inputs)."""
        wanted = set(ancestors_of(self._inputs))
        # Initial vectors of a group are drawn jointly.
        groups = {node.group for node in wanted if isinstance(node, Initial)}
        wanted |= {node for node in self.program.nodes if isinstance(node, Initial) and node.group in groups}
        parts = [(tuple(node for node in step.nodes if node in wanted), step.last) for step in self.program.steps()]
        steps = [Step(nodes, last) for nodes, last in parts if nodes]
        block = max(1, _HELD // (self.entries * width))
        result = np.empty((size, len(self._inputs), len(self._inputs)))
        for start in range(0, size, block):
            count = min(block, size - start)
            values = interpret(steps, width, count, width, self._inputs, MatrixFreeMultiplier(width, rng), rng)
            vectors = np.stack([values.get(node) for node in self._inputs], axis=1)
            result[start : start + count] = gram_of(vectors)
        return result

    @functools.cached_property
    def moments(self) -> tuple[float, float] | None:
        """The pair n E q(G - K), n E (2 q(K, G - K))² if inputs are functions of initial vectors; else None."""
        bases = bases_of(self._inputs)
        if not all(isinstance(base, Initial) for base in bases):
            return None
        place = [self.limit.lines.index(base) for base in bases]

        def change(z: FloatArray) -> FloatArray:
            known = dict(zip(bases, z, strict=True))
            x = np.stack([np.broadcast_to(value_of(node, known, {}), z.shape[1:]) for node in self._inputs])
            return np.asarray(np.einsum("ip,jp->pij", x, x) - self.kernel)

        mean, covariance = self.limit.mean[place], self.limit.covariance[np.ix_(place, place)]

        def second(z: FloatArray) -> FloatArray:
            deviation = change(z)
            return self.products(deviation, deviation)

        def slope(z: FloatArray) -> FloatArray:
            return np.asarray((2.0 * self.products(self.kernel[None], change(z))) ** 2)

        return expectation(second, mean, covariance)[0], expectation(slope, mean, covariance)[0]

    def gap(self, width: int, size: int, seeds: list[np.random.SeedSequence]) -> CharacteristicGap:
        """Return the law minus its limit, with `size` draws of G per repetition and `moments` as controls."""
        rows = [self._difference(width, size, np.random.default_rng(seed)) for seed in seeds]
        return CharacteristicGap(self.std, np.stack(rows))

    def _difference(self, width: int, size: int, rng: np.random.Generator) -> ComplexArray:
        tau = frequencies(self.std)
        limiting = np.exp(-0.5 * self.variance * tau**2)
        grams = self.grams(width, size, rng)
        deviations = grams - self.kernel
        first = 2.0 * self.products(np.broadcast_to(self.kernel, grams.shape), deviations)
        second = self.products(deviations, deviations)
        controls = limiting * (-0.5 * tau**2 * (first + second).mean() + 0.125 * tau**4 * (first**2).mean())
        total = np.zeros(len(tau), dtype=np.complex128)
        eigenvalues, used = self.eigenvalues(grams), self._count(width)
        step = max(1, _BLOCK // (used * eigenvalues.shape[1]))
        for start in range(0, size, step):
            ratios = (2.0 / math.sqrt(width)) * eigenvalues[start : start + step, :, None] * tau[:used]
            # log(1 - ix) in real functions, for speed.
            sizes, angles = np.log1p(ratios**2).sum(axis=1), np.arctan(ratios).sum(axis=1)
            total[:used] += np.exp(width * (-0.25 * sizes + 0.5j * angles)).sum(axis=0)
        difference = total / size - limiting
        if self.moments is None:
            return difference
        mean_second, mean_square = (moment / width for moment in self.moments)
        known = limiting * (-0.5 * tau**2 * mean_second + 0.125 * tau**4 * mean_square)
        return np.asarray(difference - controls + known)

    def _count(self, width: int) -> int:
        """Return the number of frequencies before the characteristic function of scores of half the size decays."""
        halved = 0.5 * self.eigenvalues(self.kernel[None])[0, :, None] * frequencies(self.std)
        logs = -0.25 * width * np.log1p(4.0 * halved**2 / width).sum(axis=0)
        return int((logs > _VANISHED).sum())

    def leading(self, width: int) -> CharacteristicGap | None:
        """Return the first term of the expansion in n^{-1/2}, or None without `moments`."""
        tau = frequencies(self.std)
        limiting = np.exp(-0.5 * self.variance * tau**2)
        if self.skewness:
            skewed = -1j * self.skewness * (self.std * tau) ** 3 / (6.0 * math.sqrt(width)) * limiting
            return CharacteristicGap(self.std, np.stack([skewed, skewed]).astype(np.complex128))
        if self.moments is None:
            return None
        fourth = 48.0 * float((self.eigenvalues(self.kernel[None]) ** 4).sum())
        mean_second, mean_square = self.moments
        term = limiting / width * (-0.5 * tau**2 * mean_second + tau**4 * (0.125 * mean_square + fourth / 24.0))
        return CharacteristicGap(self.std, np.stack([term, term]).astype(np.complex128))
