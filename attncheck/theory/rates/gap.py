"""Difference between a law at finite width and its limit, in four distances with errors."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.theory.limits.mixture import ScaleMixture
from attncheck.theory.rates.deviation import REPLICATES, Deviation, bells, tails

METRICS: tuple[str, ...] = ("ks", "w1", "tv", "kl")
#: Number of standard errors in a reported error. Student's t with 7 degrees of freedom exceeds it with probability
#: 0.5%. With the heavier tails of actual values, about 2% exceed it (76 of 4,095 at 512 draws).
ERRORS = 4.0
# Integrals over t use t = std · sinh(u): number of Gauss–Legendre panels in u, nodes per panel, and largest t/std.
_PANELS, _NODES, _RANGE = 24, 16, 40.0
# Densities and atoms at finite width are raised to at least this fraction of their values in the limit.
_LEAST_SHARE = 1e-9
# Divergences leave out points at which the limit's density is below this fraction of its maximum.
_LEAST_DENSITY = 1e-200
# From this many draws on, errors are not widened.
_MANY = 512
# Minimum number of draws in a tail for an error estimate.
_FEWEST_IN_TAIL = 20
# If the probability of a tail differs from the limit by at most this factor, it does not depend on rare draws.
_NEAR = 1.25
# The correction for noise is left out where the noise has a variance above this fraction of the squared density.
_MOST_NOISE = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class Gap:
    """Symmetric laws of one output or score, at finite width and in the limit; rescaled if the limit is 0."""

    limit: ScaleMixture
    deviation: Deviation

    @property
    def std(self) -> float:
        """Standard deviation of the limit; 1 if it is 0."""
        return math.sqrt(self.limit.mean()) or 1.0

    @functools.cached_property
    def _grid(self) -> tuple[FloatArray, FloatArray]:
        """Points t > 0 and weights of an integral over t."""
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        edges = np.linspace(0.0, math.asinh(_RANGE), _PANELS + 1)
        half = 0.5 * np.diff(edges)
        u = (edges[:-1, None] + half[:, None] * (1.0 + nodes)).ravel()
        return self.std * np.sinh(u), self.std * np.cosh(u) * (half[:, None] * weights).ravel()

    @functools.cached_property
    def _tails(self) -> FloatArray:
        return self.deviation.upper_tail(self._grid[0])

    @functools.cached_property
    def _densities(self) -> FloatArray:
        return self.deviation.density(self._grid[0])

    def distance(self, metric: str) -> tuple[float, float]:
        """Return the distance of the law at finite width from the limit, and an error estimate to first order.

        For "ks", the error is that of the difference of the distribution functions where their mean difference is
        largest. For "w1" and "tv", the integrand is the difference times the sign of its mean over repetitions, not its
        absolute value.
        """
        estimator = {"ks": self._ks, "w1": self._w1, "tv": self._tv, "kl": self._kl}[metric]
        value, replicates = estimator(self._tails, self._densities, self.deviation.atom())
        return value, standard_error(replicates)

    def scaled(self, factor: float) -> Gap:
        """Return the laws with variances multiplied by `factor` > 0."""
        return Gap(self.limit.scaled(factor), self.deviation.scaled(factor))

    def from_zero(self, metric: str) -> tuple[float, float]:
        """Return the distance of the law at finite width from the constant 0, and its error."""
        finite = 1.0 - self.limit.atom - self.deviation.atom()
        if metric == "w1":
            finite = self._mean_size + math.sqrt(2 / math.pi) * self.deviation.moment(0.5)
        value, error = (0.5 if metric == "ks" else 1.0) * float(finite.mean()), standard_error(finite)
        if metric == "kl":
            return math.inf, 0.0
        return value, 0.5 * error if metric == "ks" else error

    def leading_from_zero(self, metric: str) -> tuple[float, float]:
        """Return `from_zero` to leading order, with error 0."""
        share = 1.0 - self.limit.atom
        return {"ks": 0.5 * share, "tv": share, "w1": self._mean_size, "kl": math.inf}[metric], 0.0

    @property
    def _mean_size(self) -> float:
        """E|y| for y with the law `limit`."""
        return math.sqrt(2 / math.pi) * float(self.limit.weights @ np.sqrt(self.limit.variances))

    def leading(self, metric: str) -> tuple[float, float]:
        """Return a distance and its error to first order in 1/n, NaN if unknown."""
        measures, (points, _) = self.deviation.expansion, self._grid
        if np.isnan(measures).any():
            return math.nan, math.nan
        upper = measures @ tails(self.deviation.cells.variances, points).T
        density = measures @ bells(self.deviation.cells.variances, points).T
        estimator = {"ks": self._ks, "w1": self._w1, "tv": self._tv, "kl": self._square}[metric]
        value, replicates = estimator(upper, density, measures[:, -1])
        return value, standard_error(replicates)

    def _ks(self, upper: FloatArray, density: FloatArray, atom: FloatArray) -> tuple[float, FloatArray]:
        return largest(upper)

    def _w1(self, upper: FloatArray, density: FloatArray, atom: FloatArray) -> tuple[float, FloatArray]:
        replicates = 2.0 * (np.sign(upper.mean(axis=0)) * upper) @ self._grid[1]
        return float(replicates.mean()), replicates

    def _tv(self, upper: FloatArray, density: FloatArray, atom: FloatArray) -> tuple[float, FloatArray]:
        continuous = (np.sign(density.mean(axis=0)) * density) @ self._grid[1]
        replicates = continuous + 0.5 * np.sign(atom.mean()) * atom
        return float(replicates.mean()), replicates

    def _kl(self, upper: FloatArray, density: FloatArray, atom: FloatArray) -> tuple[float, FloatArray]:
        """Return KL(finite ‖ limit).

        The difference of the densities, whose integral is 0, is subtracted from the integrand for precision.
        """
        base, density, weights = self._where_dense(density)
        mean = density.mean(axis=0)
        share = np.maximum(mean / base, _LEAST_SHARE - 1.0)
        logs = np.log1p(share)
        value = 2.0 * float(weights @ (base * ((1.0 + share) * logs - share)))
        value -= float(weights @ _noise(density, base * (1.0 + share)))
        replicates = 2.0 * (density - mean) @ (weights * logs)
        if self.limit.atom > 0.0:
            change = max(float(atom.mean()) / self.limit.atom, _LEAST_SHARE - 1.0)
            value += self.limit.atom * ((1.0 + change) * math.log1p(change) - change)
            replicates = replicates + (atom - atom.mean()) * math.log1p(change)
        return max(value, 0.0), value + replicates

    def _where_dense(self, density: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the limit's density, the differences of the densities from it, and integration weights.

        Points at which the limit's density is tiny are left out.
        """
        points, weights = self._grid
        base = self.limit.density(points)
        dense = base > _LEAST_DENSITY * base.max()
        return base[dense], density[:, dense], weights[dense]

    def _square(self, upper: FloatArray, density: FloatArray, atom: FloatArray) -> tuple[float, FloatArray]:
        """Return ∫ Δf²/(2f), the leading term of KL, with Δf the difference from the density f of the limit."""
        base, density, weights = self._where_dense(density)
        mean = density.mean(axis=0)
        value = float(weights @ (mean**2 / base - _noise(density, base)))
        return max(value, 0.0), value + 2.0 * (density - mean) @ (weights * mean / base)


def largest(differences: FloatArray) -> tuple[float, FloatArray]:
    """Return the largest absolute mean of `differences`, (repetitions, points), and its value in each repetition."""
    mean = differences.mean(axis=0)
    worst = int(np.argmax(np.abs(mean)))
    return float(abs(mean[worst])), np.sign(mean[worst]) * differences[:, worst]


def _noise(density: FloatArray, base: FloatArray) -> FloatArray:
    """Return the contribution of noise to Δf²/f, at each point, or 0 where noise dominates.

    `density` contains Δf, the difference of the densities, in each repetition; f is `base`.
    """
    noise = density.var(axis=0, ddof=1) / len(density)
    return np.where(noise < _MOST_NOISE * base**2, noise / base, 0.0)


def standard_error(replicates: FloatArray) -> float:
    """Return the standard error of the mean over repetitions, multiplied by `ERRORS`."""
    return float(ERRORS * replicates.std(axis=0, ddof=1) / math.sqrt(REPLICATES))


def widening(draws: int) -> float:
    """Return the factor that widens error estimates from few draws, which may miss rare values."""
    return math.sqrt(max(1.0, _MANY / draws))


def error_bounds(t: FloatArray, limit: FloatArray, replicates: FloatArray, draws: int) -> FloatArray:
    """Return the errors of the mean of `replicates` over repetitions, widened if there are few draws.

    `replicates`, (repetitions, *t.shape), are differences from `limit`, the tail or the density of the limit, at the
    points `t`. Errors are infinite where too few draws contribute.
    """
    spread = widening(draws) * ERRORS * replicates.std(axis=0, ddof=1) / math.sqrt(len(replicates))
    most = max(_NEAR, math.sqrt(draws / _FEWEST_IN_TAIL))
    finite = limit + replicates.mean(axis=0)
    reached = (finite > 0) & (finite <= most * limit) & (limit <= most * finite) & np.isfinite(limit)
    return np.where(reached | np.isinf(t), spread, np.inf)[()]
