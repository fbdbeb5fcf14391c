"""Scale mixtures of centred normals: the law of y = √v · N(0, 1) for a random variance v ≥ 0.

The law of v is represented by a few hundred weighted points, Gauss points of narrow cells of log v, which is accurate
far into the tails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray, IndexArray, slices
from attncheck._lib.errors import refuse

_CELLS = 256
# All variances whose logarithm is smaller than the largest logarithm by at least this much share one cell.
_LOG_RANGE = 128.0
# If log v spans more than `_WIDE`, cells are spaced in three ways, in the proportions `_SHARES`: evenly in log v,
# evenly in log v above the `_SELDOM` quantile, and by weight. Sums over heads need this, because they have a wide range
# but most of their weight in a narrow part of it.
_WIDE, _SELDOM, _SHARES = 8.0, 1e-6, np.array([0.1, 0.7, 0.2])
# Maximum relative deviation from a cell's mean, so that its cube fits float64.
_LARGEST_DEVIATION = 1e100
# Maximum number of (t, variance) pairs per block; their 2 MiB fit the processor's cache.
_BLOCK = 2**18


@dataclasses.dataclass(frozen=True, eq=False)
class ScaleMixture:
    """Law of √v · N(0, 1) for a discrete v.

    The positive values of v are `variances`, with the probabilities `weights`; `atom` is P(v = 0).
    """

    variances: FloatArray
    weights: FloatArray
    atom: float

    def mean(self) -> float:
        """Return E[v]."""
        return float(self.weights @ self.variances)

    def variance(self) -> float:
        """Return Var(v)."""
        mean = self.mean()
        return float(self.weights @ (self.variances - mean) ** 2) + self.atom * mean**2

    def excess_kurtosis(self) -> float:
        """Return the excess kurtosis of y, 3 Var(v)/E[v]², or 0 if y is always 0."""
        return 0.0 if self.atom == 1 else 3 * self.variance() / self.mean() ** 2

    def scaled(self, factor: float) -> ScaleMixture:
        """Return the law of `factor` · v, factor > 0."""
        return dataclasses.replace(self, variances=factor * self.variances)

    def upper_tail(self, size: FloatArray) -> FloatArray:
        """Return P(y > size) for sizes ≥ 0, without cancellation."""
        return _average(self, size, lambda ratio: special.ndtr(-ratio))

    def density(self, size: FloatArray) -> FloatArray:
        """Return the density of the continuous part at ±size."""
        roots = np.sqrt(self.variances)
        scaled = ScaleMixture(self.variances, self.weights / roots, self.atom)
        bells = _average(scaled, size, lambda ratio: np.exp(-0.5 * ratio * ratio))
        return np.asarray(bells / np.sqrt(2 * np.pi))

    def quantile(self, chances: FloatArray) -> FloatArray:
        """Return quantiles at the probabilities `chances`, infinite at 0 and 1."""
        return symmetric_quantile(self.upper_tail, chances, float(self.variances.max(initial=0.0)))

    def plus(self, addend: ScaleMixture) -> ScaleMixture:
        """Return the law of the sum of v and an independent variance with law `addend`."""
        first, first_weights = _with_atom(self)
        second, second_weights = _with_atom(addend)
        return condense(np.add.outer(first, second).ravel(), np.outer(first_weights, second_weights).ravel())

    def times(self, count: int) -> ScaleMixture:
        """Return the law of the sum of `count` ≥ 1 independent copies of v."""
        if count == 1:
            return self
        half = self.times(count // 2)
        double = half.plus(half)
        return double.plus(self) if count % 2 else double


def symmetric_quantile(
    upper_tail: Callable[[FloatArray], FloatArray], chances: FloatArray, largest: float
) -> FloatArray:
    """Return the quantiles of a symmetric law at the probabilities `chances`; they are infinite at 0 and 1.

    `upper_tail` maps sizes t ≥ 0 to P(y > t). It must be continuous for t > 0, and 0 for t ≥ 40 √largest, where
    `largest` is the largest conditional variance. If it is not monotone, the result is one of several solutions.
    """
    flat = chances.ravel()
    targets = np.minimum(flat, 1.0 - flat)
    sizes = np.where(targets > 0, 0.0, np.inf)
    inside = (targets > 0) & (targets < upper_tail(np.zeros(1)))

    def above(size: FloatArray, /, *tail: Any, **_: Any) -> FloatArray:
        return np.asarray(upper_tail(size) - tail[0])

    if inside.any():
        from scipy.optimize import elementwise  # slow to import

        # Beyond 40 standard deviations the tail is 0 in double precision, so the signs at the ends differ.
        bracket = 0.0, 40.0 * float(np.sqrt(largest))
        # No absolute tolerance: tails may be arbitrarily small.
        root = elementwise.find_root(above, bracket, args=(targets[inside],), tolerances={"fatol": 0.0})
        sizes[inside] = root.x
    return np.where(flat < 0.5, 0.0 - sizes, sizes).reshape(chances.shape)


def condense(variances: FloatArray, weights: FloatArray) -> ScaleMixture:
    """Replace a discrete law of a variance v by one with at most two points per cell, an interval of log v.

    The points of a cell have the total weight and the first three moments of the original points in the cell.
    """
    weights = weights / weights.sum()
    positive = (variances > 0) & (weights > 0)
    atom = float(weights[variances == 0].sum())
    variances, weights = variances[positive], weights[positive]
    if variances.size <= 1:
        return ScaleMixture(variances, weights, atom)
    cell = _cells(np.log(variances), weights)
    # Scale the variances and the weights of each cell by powers of two, which is exact. Moments then fit float64, even
    # for very large or small variances, and for weights below 1e-300, which occur in sums over many heads.
    variances, unit = _in_units(variances, cell)
    weights, share = _in_units(weights, cell)
    total: FloatArray = np.bincount(cell, weights, _CELLS).astype(np.float64)
    used = np.flatnonzero(total > 0)

    def cell_mean(values: FloatArray) -> FloatArray:
        return np.bincount(cell, weights * values, _CELLS)[used] / total[used]

    mean = cell_mean(variances)
    spread = np.zeros(_CELLS)
    spread[used] = mean
    # Variances beyond the range `_LOG_RANGE` share one cell, whose mean may be far below its largest value.
    deviation = np.minimum(variances / spread[cell] - 1.0, _LARGEST_DEVIATION)
    square = deviation**2
    # Multiplying is fifty times faster than taking a third power.
    second, third = cell_mean(square), cell_mean(square * deviation)
    least = np.full(_CELLS, np.inf)
    np.minimum.at(least, cell, variances)
    unit, weight = unit[used], np.ldexp(total[used], share[used])
    return _gauss_points(np.ldexp(mean, unit), second, third, np.ldexp(least[used], unit), weight, atom)


def _cells(logs: FloatArray, weights: FloatArray) -> IndexArray:
    """Return the cell of each log variance; cells have equal widths, unless the logs span more than `_WIDE`."""
    top = logs.max()
    bottom = max(logs.min(), top - _LOG_RANGE)
    position = np.maximum((logs - bottom) * (_CELLS / max(top - bottom, 1e-300)), 0)
    cell = np.minimum(position, _CELLS - 1).astype(np.intp)
    return np.asarray(cell if top - bottom <= _WIDE else _refined(position, cell, weights))


def _refined(position: FloatArray, cell: IndexArray, weights: FloatArray) -> IndexArray:
    """Return each variance's cell in a grid that is finer where most weight is, and in the upper tail.

    `position` and `cell` give the place of each variance, and its cell, in a grid of equal cells of width 1.
    """
    evenly = np.linspace(0.0, 1.0, _CELLS + 1)
    below = np.append(0.0, np.cumsum(np.bincount(cell, weights, _CELLS)))
    below /= below[-1]
    knee = evenly[np.searchsorted(below, _SELDOM) - 1]
    above_knee = np.maximum(evenly - knee, 0.0) / (1.0 - knee)
    edges = _CELLS * (_SHARES @ np.stack([evenly, above_knee, below]))
    refined = edges[cell] + (position - cell) * np.diff(edges)[cell]
    return np.asarray(np.minimum(refined, _CELLS - 1).astype(np.intp))


def _in_units(values: FloatArray, cell: IndexArray) -> tuple[FloatArray, IndexArray]:
    """Divide values by a power of two per cell, which makes the largest value of the cell at least 1/2 and below 1.

    Return the quotients, and the exponents of the powers, (cells,).
    """
    _, exponents = np.frexp(values)
    unit = np.full(_CELLS, np.iinfo(exponents.dtype).min, dtype=exponents.dtype)
    np.maximum.at(unit, cell, exponents)
    return np.ldexp(values, -unit[cell]), unit


def _gauss_points(
    mean: FloatArray, second: FloatArray, third: FloatArray, least: FloatArray, total: FloatArray, atom: float
) -> ScaleMixture:
    """Return two points per cell, or one if it is very narrow, with the cell's weight `total` and first three moments.

    `second` and `third` are moments of relative deviations from `mean`. Points are at least `least`. `atom` is the
    probability of 0.
    """
    # Very narrow cells become one point, since their third moment is only rounding error.
    wide = second > 1e-14
    relative = np.sqrt(second[wide])
    sigma, skew = mean[wide] * relative, third[wide] / relative**3
    root = np.sqrt(skew * skew + 4)
    low, high = mean[wide] + sigma * (skew - root) / 2, mean[wide] + sigma * (skew + root) / 2
    low = np.maximum(low, least[wide])
    high_share = (root - skew) / (2 * root)
    return ScaleMixture(
        np.concatenate([mean[~wide], low, high]),
        np.concatenate([total[~wide], total[wide] * (1 - high_share), total[wide] * high_share]),
        atom,
    )


def pool(mixtures: tuple[ScaleMixture, ...]) -> ScaleMixture:
    """Return the mixture of several scale mixtures with equal weights."""
    parts = [_with_atom(mixture) for mixture in mixtures]
    return condense(np.concatenate([v for v, _ in parts]), np.concatenate([w for _, w in parts]))


def _with_atom(mixture: ScaleMixture) -> tuple[FloatArray, FloatArray]:
    """Return variances and weights, including the atom at 0."""
    if mixture.atom == 0:
        return mixture.variances, mixture.weights
    return np.append(mixture.variances, 0.0), np.append(mixture.weights, mixture.atom)


def check_points(t: ArrayLike) -> FloatArray:
    """Return evaluation points as float64, or raise `InputError` if not numeric or NaN."""
    return _without_nan("t", t)


def check_chances(q: ArrayLike) -> FloatArray:
    """Return probabilities as float64, or raise `InputError` if not in [0, 1]."""
    chances = _without_nan("q", q)
    if ((chances < 0) | (chances > 1)).any():
        refuse("q", q, "must be from 0 to 1", "pass probabilities, e.g. q=0.975")
    return chances


def _without_nan(field: str, values: ArrayLike) -> FloatArray:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        refuse(field, values, "must be numbers", "pass a number or an array of them")
    if np.isnan(numbers).any():
        refuse(field, values, "holds NaN", "remove the NaN entries")
    return numbers


def _average(mixture: ScaleMixture, size: FloatArray, of_ratio: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return the sum of weight · of_ratio(size/√v) over the points v of the mixture, for every size, in blocks."""
    roots = np.sqrt(mixture.variances)
    flat = size.ravel()
    result = np.zeros(flat.shape)
    for part in slices(flat.size, _BLOCK // max(1, roots.size)):
        # Beyond 100 standard deviations, tails and densities are 0 in double precision. The bound keeps squares finite.
        ratio = np.minimum(flat[part, None] / roots, 100.0)
        result[part] = of_ratio(ratio) @ mixture.weights
    return result.reshape(size.shape)
