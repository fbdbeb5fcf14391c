"""Difference between the law at finite width and the limit: a signed measure of conditional variances.

Let δ be the deviations of the Gram matrices (`Drivers`) from their limits, and g(δ) the average of a function of the
conditional variance over the normals from which scores are computed. Draws of g(δ) - g(0) have noise of order n^{-1/2}
and mean of order 1/n. The controls

    L = g'(0)[δ],   Q = g''(0)[δ, δ]/2

have means known from the moments of δ: the first term of the expansion in 1/n. The remainder is of order n^{-3/2}.
The mean of Q is not computed if variances have kinks, where second differences are too noisy, or if the Gram matrix has
too many entries.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Self

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray, IndexArray, slices
from attncheck.theory.limits.rows import normal_points
from attncheck.theory.rates.drivers import Drivers, Fluctuations
from attncheck.theory.rates.marginal import Marginal

#: Number of independent repetitions, whose spread gives the errors.
REPLICATES = 8
# Step of finite differences in the Gram matrices, relative to their limits.
_STEP = 0.02
# A point has all normals from which the scores of a draw are computed. Maximum and minimum number of points, and
# maximum number of normals in all points.
_MOST_POINTS, _FEWEST_POINTS, _ENTRIES = 2**9, 2**5, 2**13
# Number of cells, and maximum range of log v that the cells cover.
_CELLS = 2048
_LOG_RANGE = 60.0
_PILOT = 64
# Cells cover the range of the variances in a pilot sample, extended by this factor on both sides.
_MARGIN = math.exp(3.0)
# Width at which terms beyond the first order in 1/n are negligible.
_WIDE = 2**20
# Maximum number of distinct entries of a Gram matrix for which the mean of the control Q is computed.
_MOST_DIRECTIONS = 400
# Maximum number of array entries per block.
_BLOCK = 2**21
_PROBES = np.geomspace(0.1, 2.5, 16)


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """Grid of variances v, evenly spaced in log v and followed by 0.

    A mass at any other v is distributed over four cells by cubic interpolation.
    """

    variances: FloatArray

    @classmethod
    def over(cls, smallest: float, largest: float) -> Cells:
        """Return cells for a range of variances."""
        top = math.log(largest)
        bottom = max(math.log(smallest), top - _LOG_RANGE) if smallest > 0 else top - _LOG_RANGE
        return cls(np.append(np.exp(np.linspace(bottom, top, _CELLS)), 0.0))

    def spread(self, variances: FloatArray) -> FloatArray:
        """Return a probability measure on the cells for each row of variances, (rows, cells + 1).

        All variances of a row have the same mass.
        """
        rows, points = variances.shape
        count = len(self.variances) - 1
        lower, weights = self._around(variances)
        positive = variances > 0
        first = lower + (count + 1) * np.arange(rows)[:, None]
        result = np.zeros(rows * (count + 1))
        for shift, weight in enumerate(weights):
            result += np.bincount((first + shift)[positive], weight[positive], len(result))
        zeros = np.bincount(np.nonzero(~positive)[0], minlength=rows).astype(np.float64)
        result.reshape(rows, -1)[:, -1] = zeros
        return np.asarray(result.reshape(rows, -1) / points)

    def _around(self, variances: FloatArray) -> tuple[IndexArray, tuple[FloatArray, ...]]:
        """Return the index of the first of four cells around each v > 0, and the interpolation weights of the four."""
        count = len(self.variances) - 1
        logs = np.log(self.variances[[0, -2]])
        with np.errstate(divide="ignore"):
            position = (np.log(variances) - logs[0]) * ((count - 1) / (logs[1] - logs[0]))
        position = np.clip(position, 0.0, count - 1.0)
        lower = np.clip(np.floor(position).astype(np.intp) - 1, 0, count - 4)
        x = position - lower
        a, b, c, d = x, x - 1.0, x - 2.0, x - 3.0
        return lower, (b * c * d / -6.0, a * c * d / 2.0, a * b * d / -2.0, a * b * c / 6.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Deviation:
    """Signed measure: the law of the conditional variance v at finite width minus that in the limit.

    Attributes
    ----------
    measures : ndarray, shape (REPLICATES, cells + 1)
        Estimate of the signed measure from each repetition.
    draws : int
        Number of draws in all repetitions together.
    first_order : callable
        Computes `expansion`.
    """

    cells: Cells
    measures: FloatArray
    draws: int
    first_order: Callable[[], FloatArray]

    @functools.cached_property
    def expansion(self) -> FloatArray:
        """First order in 1/n of the measure, (REPLICATES, cells + 1); NaN if unknown."""
        return self.first_order()

    def upper_tail(self, size: FloatArray) -> FloatArray:
        """Return P(y > size) minus its limit, (REPLICATES, sizes)."""
        return self._integrated(tails, size)

    def density(self, size: FloatArray) -> FloatArray:
        """Return the density of y minus its limit, (REPLICATES, sizes)."""
        return self._integrated(bells, size)

    def moment(self, power: float) -> FloatArray:
        """Return E v^power minus its limit, (REPLICATES,)."""
        return np.asarray(self.measures @ self.cells.variances**power)

    def atom(self) -> FloatArray:
        """Return the probability P(v = 0) at this width minus that in the limit, (REPLICATES,)."""
        return self.measures[:, -1]

    def scaled(self, factor: float) -> Self:
        """Return the measure with variances multiplied by `factor`."""
        return dataclasses.replace(self, cells=Cells(factor * self.cells.variances))

    def _integrated(self, function: Callable[[FloatArray, FloatArray], FloatArray], size: FloatArray) -> FloatArray:
        """Return integrals over the measure of a function of variances and sizes, (REPLICATES, sizes)."""
        variances = self.cells.variances
        sizes = (size[part] for part in slices(len(size), _BLOCK // len(variances)))
        parts = [self.measures @ function(variances, part).T for part in sizes]
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(self.measures), 0))


def tails(variances: FloatArray, size: FloatArray) -> FloatArray:
    """Return P(√v N > size) for standard normal N, each size and each variance v, (sizes, variances)."""
    return np.asarray(special.ndtr(-_ratios(variances, size)))


def bells(variances: FloatArray, size: FloatArray) -> FloatArray:
    """Return the density of √v N at each size, for standard normal N and each variance v, (sizes, variances)."""
    ratios = _ratios(variances, size)
    roots = np.sqrt(np.where(variances > 0, variances, 1.0))
    return np.where(variances > 0, np.exp(-0.5 * ratios**2) / (roots * math.sqrt(2 * math.pi)), 0.0)


def _ratios(variances: FloatArray, size: FloatArray) -> FloatArray:
    roots = np.sqrt(np.where(variances > 0, variances, 1.0))
    # Beyond 40 standard deviations the density underflows.
    return np.where(variances > 0, np.minimum(size[:, None] / roots, 40.0), 40.0)


def points_for(normals: int) -> int:
    """Return the number of points per repetition at which scores are computed from this number of normals each."""
    if normals == 0:
        return 1
    most = min(_MOST_POINTS, max(_FEWEST_POINTS, _ENTRIES // normals))
    return int(2 ** math.floor(math.log2(most)))


def deviation(marginal: Marginal, size: int, seed: np.random.SeedSequence, *, infinite: bool = False) -> Deviation:
    """Return the law of an output or score at finite width minus its limit, estimated from `size` draws in total.

    If `infinite` is True, the width is infinite, and only the head_dim is finite.
    """
    fluctuations = marginal.fluctuations(infinite)
    pilot, *streams = seed.spawn(1 + REPLICATES)
    cells = _cells(marginal, fluctuations, np.random.default_rng(pilot))
    draws = max(2, -(-size // REPLICATES))
    repetitions = [
        _Repetition.draw(marginal, fluctuations, cells, draws, np.random.default_rng(stream)) for stream in streams
    ]
    linear, quadratic = _coefficients(repetitions)
    measures = [part.combined(linear, quadratic) for part in repetitions]
    first_order = functools.partial(_first_order, marginal, cells, streams, infinite)
    return Deviation(cells, np.stack(measures), draws * REPLICATES, first_order)


def _first_order(marginal: Marginal, cells: Cells, streams: list[np.random.SeedSequence], infinite: bool) -> FloatArray:
    """Return the terms of order 1/n of the signed measure, (REPLICATES, cells + 1), or NaN if unknown.

    They are computed at a width that is so large that all other terms vanish. The terms are the `shift`, g(0) minus the
    measure in the limit; the mean of the control L; and the mean of the control Q. The description of the module
    defines g, L and Q.
    """
    if not expands(marginal):
        return np.full((REPLICATES, len(cells.variances)), np.nan)
    factor = max(1, _WIDE // marginal.layer.width)
    wide = marginal.widened(factor)
    terms = []
    for stream in streams:
        rng = np.random.default_rng(stream)
        lines = _Lines(wide, wide.fluctuations(infinite), cells, _score_normals(wide.normals, rng))
        quadratic = lines.quadratic_mean(rng)
        assert quadratic is not None
        terms.append(lines.shift() + lines.linear_mean() + quadratic)
    return np.asarray(factor * np.stack(terms))


def expands(marginal: Marginal) -> bool:
    """Return whether the mean of the control Q, and thus the first order in 1/n, can be computed.

    It can if conditional variances have no kinks, and if the Gram matrix has not too many entries.
    """
    size = len(marginal.fluctuations(infinite=False).positions)
    return not marginal.kinked and size * (size + 1) // 2 <= _MOST_DIRECTIONS


def retained_entries(marginal: Marginal, size: int, infinite: bool) -> int:
    """Return how many array entries `deviation` stores."""
    limits = marginal.fluctuations(infinite).limits
    count = limits.gram.size + limits.keys.size + limits.values.size
    return size * 3 * len(_PROBES) + size // REPLICATES * count


def _cells(marginal: Marginal, fluctuations: Fluctuations, rng: np.random.Generator) -> Cells:
    """Return cells that cover the variances at finite width and in the limit."""
    limits = fluctuations.limits
    normals = rng.standard_normal((points_for(marginal.normals), marginal.normals))
    finite = limits.moved(fluctuations.draw(_PILOT, rng), np.ones(_PILOT))
    variances = np.concatenate(
        [marginal.variances(finite, normals), marginal.variances(limits, normals, limit=True)], axis=0
    )
    positive = variances[variances > 0]
    if not positive.size:
        return Cells.over(1e-300, 1.0)
    return Cells.over(float(positive.min()) / _MARGIN, float(positive.max()) * _MARGIN)


@dataclasses.dataclass(frozen=True, eq=False)
class _Repetition:
    """Averages over the draws of one repetition, each (cells + 1,).

    As in the module's description, g(δ) is the measure for deviations δ of the Gram matrices from their limits, and L
    and Q are the linear and the quadratic control.

    Attributes
    ----------
    shift
        g(0) minus the measure in the limit; nonzero only with "1/n" scaling.
    change
        Mean of g(δ) - g(0) over draws.
    linear
        Mean of L over draws minus its exact mean.
    quadratic
        Mean of Q over draws minus its exact mean, or None if that is unknown.
    probes : ndarray, shape (draws, 3, probes)
        g(δ) - g(0), L and Q for several test functions g.
    """

    shift: FloatArray
    change: FloatArray
    linear: FloatArray
    quadratic: FloatArray | None
    probes: FloatArray

    @classmethod
    def draw(
        cls, marginal: Marginal, fluctuations: Fluctuations, cells: Cells, size: int, rng: np.random.Generator
    ) -> _Repetition:
        """Draw score normals, and deviations δ of the Gram matrices, and return averages over these draws.

        Averages are computed of g(δ) - g(0), and of the controls L and Q.
        """
        lines = _Lines(marginal, fluctuations, cells, _score_normals(marginal.normals, rng))
        table = tails(cells.variances, _PROBES * math.sqrt(marginal.law().mean() or 1.0)).T
        sums, probes = np.zeros((3, len(cells.variances))), []
        deviations = fluctuations.draw(size, rng)
        for part in slices(size, _BLOCK // (len(cells.variances) * 3)):
            parts = np.stack(lines.parts(deviations[part]))
            sums += parts.sum(axis=1)
            probes.append((parts @ table).swapaxes(0, 1))
        change, linear, quadratic = sums / size
        mean = lines.quadratic_mean(rng)
        return cls(
            shift=lines.shift(),
            change=change,
            linear=linear - lines.linear_mean(),
            quadratic=None if mean is None else quadratic - mean,
            probes=np.concatenate(probes),
        )

    def combined(self, linear: float, quadratic: float) -> FloatArray:
        """Return the law at finite width minus the limit, corrected by the controls L and Q with these coefficients."""
        controls = linear * self.linear
        if self.quadratic is not None:
            controls = controls + quadratic * self.quadratic
        return np.asarray(self.shift + self.change - controls)


@dataclasses.dataclass(frozen=True, eq=False)
class _Lines:
    """The measure of conditional variances as a function of the Gram matrices, near the limits of these matrices."""

    marginal: Marginal
    fluctuations: Fluctuations
    cells: Cells
    normals: FloatArray
    centre: FloatArray = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        at_limits = self.marginal.variances(self.fluctuations.limits, self.normals)
        object.__setattr__(self, "centre", self.cells.spread(at_limits)[0])

    def shift(self) -> FloatArray:
        """Return the measure for Gram matrices equal to their limits, minus the measure in the limit.

        It is nonzero only with "1/n" scaling, where scores depend on the width itself.
        """
        limiting = self.marginal.variances(self.fluctuations.limits, self.normals, limit=True)
        return np.asarray(self.centre - self.cells.spread(limiting)[0])

    def at(self, deviations: Drivers, steps: FloatArray) -> FloatArray:
        """Return the measures for Gram matrices equal to limits plus `steps` · `deviations`, (draws, cells + 1)."""
        changed = self.fluctuations.limits.moved(deviations, steps)
        return self.cells.spread(self.marginal.variances(changed, self.normals))

    def parts(self, deviations: Drivers) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the changes g(δ) - g(0), and the linear and quadratic controls L and Q, (draws, cells + 1) each."""
        change = self.at(deviations, np.ones(len(deviations))) - self.centre
        return change, *self.derivatives(deviations)

    def derivatives(self, deviations: Drivers) -> tuple[FloatArray, FloatArray]:
        """Return the controls L and Q of each draw, which are finite differences of first and second order."""
        sizes = self.fluctuations.sizes(deviations)
        steps = _STEP / np.where(sizes > 0, sizes, 1.0)
        ahead, behind = self.at(deviations, steps), self.at(deviations, -steps)
        linear = (ahead - behind) / (2.0 * steps[:, None])
        return linear, (ahead + behind - 2.0 * self.centre) / (2.0 * steps[:, None] ** 2)

    def linear_mean(self) -> FloatArray:
        """Return the mean of the linear control."""
        return np.asarray(self.derivatives(self.fluctuations.mean)[0][0])

    def quadratic_mean(self, rng: np.random.Generator) -> FloatArray | None:
        """Return the mean of the quadratic control, or None if unknown."""
        if not expands(self.marginal):
            return None
        still = self.fluctuations.still
        total = np.zeros(len(self.cells.variances))
        directions = self.fluctuations.gram_directions(rng)
        if len(directions):
            total += self.derivatives(dataclasses.replace(still, gram=directions))[1].sum(axis=0)
        deviations, count = self.fluctuations.head_directions(len(self.normals))
        if len(deviations):
            for field in ("keys", "values"):
                direction = dataclasses.replace(still, **{field: deviations})
                total += count * self.derivatives(direction)[1].sum(axis=0)
        return total


def _score_normals(dimension: int, rng: np.random.Generator) -> FloatArray:
    """Return normal Sobol points N and their negatives -N, so that odd powers of N cancel in averages."""
    if dimension == 0:
        return np.zeros((1, 0))
    half = normal_points(dimension, rng)(points_for(dimension) // 2)
    return np.concatenate([half, -half])


def _coefficients(repetitions: list[_Repetition]) -> tuple[float, float]:
    """Return the coefficients of the controls L and Q, fitted to the `probes` of all repetitions by least squares."""
    change, linear, quadratic = (
        np.concatenate([part.probes[:, k] - part.probes[:, k].mean(axis=0) for part in repetitions]) for k in range(3)
    )
    spread = change.std(axis=0)
    used = spread > 0
    if not used.any():
        return 0.0, 0.0
    controls = [linear, quadratic] if repetitions[0].quadratic is not None else [linear]
    columns = np.stack([(control[:, used] / spread[used]).ravel() for control in controls], axis=1)
    scales = np.sqrt((columns**2).mean(axis=0))
    scales = np.where(scales > 0, scales, 1.0)
    solution = np.linalg.lstsq(columns / scales, (change[:, used] / spread[used]).ravel(), rcond=None)[0] / scales
    return float(solution[0]), float(solution[1]) if len(solution) > 1 else 0.0
