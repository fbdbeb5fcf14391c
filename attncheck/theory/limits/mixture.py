"""Scale mixtures of centred normals: the law of y = √v · N(0, 1) for a random variance v ≥ 0.

The law of v is kept as a few hundred weighted points. They are Gauss points of narrow cells of log v,
with positive weights, so that sums keep their relative accuracy far into the tails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from attncheck._lib.errors import refuse

FloatArray = NDArray[np.float64]

_CELLS = 256
# Variances this far (in log) below the largest share one cell: squared products of several normals reach far.
_LOG_REACH = 128.0
# Where v spans more than this (in log), a share of the cells lies evenly in log v, one evenly above the variances that
# have no more than this chance, and one by weight: sums of heads are narrow in a wide range.
_WIDE, _SELDOM, _SHARES = 8.0, 1e-6, np.array([0.1, 0.7, 0.2])
# Cubes of deviations from the mean of a cell, relative to it, stay within float64.
_LARGEST_DEVIATION = 1e100
# Entries of a block of (t, variance) pairs: 2 MiB, so that memory is bounded and the cache is used.
_BLOCK = 2**18


@dataclasses.dataclass(frozen=True, eq=False)
class ScaleMixture:
    """The law of √v · N(0, 1), v discrete.

    Attributes
    ----------
    variances : ndarray, shape (m,)
        Positive values of v.
    weights : ndarray, shape (m,)
        Their probabilities.
    atom : float
        P(v = 0), so that `atom` and the weights add up to one.
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

    def scaled(self, factor: float) -> ScaleMixture:
        """Return the law with v multiplied by `factor` > 0."""
        return dataclasses.replace(self, variances=factor * self.variances)

    def upper_tail(self, size: FloatArray) -> FloatArray:
        """Return P(y > size) for an array of sizes ≥ 0, without cancellation."""
        return _average(self, size, lambda ratio: special.ndtr(-ratio))

    def density(self, size: FloatArray) -> FloatArray:
        """Return the density of the continuous part at ±size."""
        roots = np.sqrt(self.variances)
        scaled = ScaleMixture(self.variances, self.weights / roots, self.atom)
        bells = _average(scaled, size, lambda ratio: np.exp(-0.5 * ratio * ratio))
        return np.asarray(bells / np.sqrt(2 * np.pi))

    def quantile(self, chances: FloatArray) -> FloatArray:
        """Return where P(y ≤ t) reaches chances from 0 to 1, by bracketing; infinite at both ends."""
        return symmetric_quantile(self.upper_tail, chances, float(self.variances.max(initial=0.0)))

    def plus(self, other: ScaleMixture) -> ScaleMixture:
        """Return the law with v the sum of this v and an independent one."""
        first, first_weights = _with_atom(self)
        second, second_weights = _with_atom(other)
        return condense(np.add.outer(first, second).ravel(), np.outer(first_weights, second_weights).ravel())

    def times(self, count: int) -> ScaleMixture:
        """Return the law with v the sum of `count` ≥ 1 independent copies."""
        if count == 1:
            return self
        half = self.times(count // 2)
        double = half.plus(half)
        return double.plus(self) if count % 2 else double


def symmetric_quantile(
    upper_tail: Callable[[FloatArray], FloatArray], chances: FloatArray, largest: float
) -> FloatArray:
    """Return where P(y ≤ t) of a symmetric law reaches chances from 0 to 1; infinite at both ends.

    Parameters
    ----------
    upper_tail : callable
        P(y > size) for an array of sizes ≥ 0: continuous, but for an atom at 0, and 0 from 40 √largest on. Where it
        is not monotone the root is one of several.
    chances : ndarray
    largest : float
        The largest variance that y has given what it is a mixture over.
    """
    flat = chances.ravel()
    wanted = np.minimum(flat, 1.0 - flat)
    sizes = np.where(wanted > 0, 0.0, np.inf)
    inside = (wanted > 0) & (wanted < upper_tail(np.zeros(1)))

    def above(size: FloatArray, /, *tail: Any, **_: Any) -> FloatArray:
        return np.asarray(upper_tail(size) - tail[0])

    if inside.any():
        from scipy.optimize import elementwise  # slow to import

        # Beyond 40 standard deviations nothing is left in double precision: the signs at the two ends differ.
        bracket = 0.0, 40.0 * float(np.sqrt(largest))
        # Tails may be smaller than any tolerance that is not relative.
        found = elementwise.find_root(above, bracket, args=(wanted[inside],), tolerances={"fatol": 0.0})
        sizes[inside] = found.x
    return np.where(flat < 0.5, 0.0 - sizes, sizes).reshape(chances.shape)


def condense(variances: FloatArray, weights: FloatArray) -> ScaleMixture:
    """Return a mixture of at most two variances per cell, from any number of weighted ones.

    In each cell of log v the two points have the weight and the first three moments of what was
    there, which is two-point Gauss quadrature.

    Parameters
    ----------
    variances, weights : ndarray, shape (m,)
        Non-negative; the weights are normalised to add up to one.
    """
    weights = weights / weights.sum()
    positive = (variances > 0) & (weights > 0)
    atom = float(weights[variances == 0].sum())
    variances, weights = variances[positive], weights[positive]
    if variances.size <= 1:
        return ScaleMixture(variances, weights, atom)
    cell = _cells(np.log(variances), weights)
    # Powers of two cost no digits. Those of each cell keep its moments within float64, whatever the units of v are,
    # and however little weight the cell has: sums over many heads leave cells of weights below 1e-300.
    variances, unit = _in_units(variances, cell)
    weights, share = _in_units(weights, cell)
    total: FloatArray = np.bincount(cell, weights, _CELLS).astype(np.float64)
    used = np.flatnonzero(total > 0)

    def cell_mean(values: FloatArray) -> FloatArray:
        return np.bincount(cell, weights * values, _CELLS)[used] / total[used]

    mean = cell_mean(variances)
    spread = np.zeros(_CELLS)
    spread[used] = mean
    # Relative to the mean of the cell, which may be far below its largest in the cell of all that is beyond reach.
    deviation = np.minimum(variances / spread[cell] - 1.0, _LARGEST_DEVIATION)
    square = deviation**2
    # A product takes a fiftieth of the time of a third power.
    second, third = cell_mean(square), cell_mean(square * deviation)
    least = np.full(_CELLS, np.inf)
    np.minimum.at(least, cell, variances)
    unit, weight = unit[used], np.ldexp(total[used], share[used])
    return _gauss_points(np.ldexp(mean, unit), second, third, np.ldexp(least[used], unit), weight, atom)


def _cells(logs: FloatArray, weights: FloatArray) -> NDArray[np.intp]:
    """Return the cells of logarithms of variances: all alike, unless these span more than `_WIDE`."""
    top = logs.max()
    bottom = max(logs.min(), top - _LOG_REACH)
    place = np.maximum((logs - bottom) * (_CELLS / max(top - bottom, 1e-300)), 0)
    cell = np.minimum(place, _CELLS - 1).astype(np.intp)
    return np.asarray(cell if top - bottom <= _WIDE else _refined(place, cell, weights))


def _refined(place: FloatArray, cell: NDArray[np.intp], weights: FloatArray) -> NDArray[np.intp]:
    """Return narrower cells where the weight is and in the upper tail, and wider ones of small variances.

    Parameters
    ----------
    place : ndarray, shape (m,)
        In units of cells that are all alike in log v.
    cell : ndarray, shape (m,)
        Its integer part.
    weights : ndarray, shape (m,)
    """
    evenly = np.linspace(0.0, 1.0, _CELLS + 1)
    below = np.append(0.0, np.cumsum(np.bincount(cell, weights, _CELLS)))
    below /= below[-1]
    knee = evenly[np.searchsorted(below, _SELDOM) - 1]
    above_knee = np.maximum(evenly - knee, 0.0) / (1.0 - knee)
    edges = _CELLS * (_SHARES @ np.stack([evenly, above_knee, below]))
    refined = edges[cell] + (place - cell) * np.diff(edges)[cell]
    return np.asarray(np.minimum(refined, _CELLS - 1).astype(np.intp))


def _in_units(values: FloatArray, cell: NDArray[np.intp]) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return positive values over the power of two of the largest of their cell, and the exponents, (cells,)."""
    _, exponents = np.frexp(values)
    unit = np.full(_CELLS, np.iinfo(exponents.dtype).min, dtype=exponents.dtype)
    np.maximum.at(unit, cell, exponents)
    return np.ldexp(values, -unit[cell]), unit


def _gauss_points(
    mean: FloatArray, second: FloatArray, third: FloatArray, least: FloatArray, total: FloatArray, atom: float
) -> ScaleMixture:
    """Return the two points per cell that match the weight and three moments; `second` and `third` relative to it.

    Both lie between the `least` and the largest of the cell, but for rounding, which may leave 0 or less.
    """
    # A cell narrower than this is one point; its third moment would be rounding.
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
    """Return the mixture in equal parts of several."""
    parts = [_with_atom(mixture) for mixture in mixtures]
    return condense(np.concatenate([v for v, _ in parts]), np.concatenate([w for _, w in parts]))


def _with_atom(mixture: ScaleMixture) -> tuple[FloatArray, FloatArray]:
    """Return variances and weights with the atom as a variance of 0."""
    if mixture.atom == 0:
        return mixture.variances, mixture.weights
    return np.append(mixture.variances, 0.0), np.append(mixture.weights, mixture.atom)


def check_points(t: ArrayLike) -> FloatArray:
    """Return where a law is to be evaluated as float64, or raise `InputError` for NaN and what is no number."""
    return _without_nan("t", t)


def check_chances(q: ArrayLike) -> FloatArray:
    """Return chances as float64, or raise `InputError` for NaN and what is not from 0 to 1."""
    chances = _without_nan("q", q)
    if ((chances < 0) | (chances > 1)).any():
        refuse("q", q, "must be from 0 to 1", "pass chances, e.g. q=0.975")
    return chances


def check_numbers(field: str, values: ArrayLike, remedy: str) -> FloatArray:
    """Return real numbers as float64, or raise `InputError` for masked ones, complex ones, booleans and strings."""
    if np.ma.is_masked(values):
        refuse(field, values, "has masked entries", "leave them out, and pass a plain array of numbers")
    try:
        given = np.asarray(values)
        # Objects may be numbers too, such as whole ones of many digits.
        real = given.dtype.kind in "iuf" or (given.dtype.kind == "O" and not _holds_text(given))
        numbers = given.astype(np.float64, copy=False) if real else None
    except OverflowError:
        refuse(field, values, "is larger than any float", remedy)
    except (TypeError, ValueError):
        numbers = None
    if numbers is None:
        refuse(field, values, "must be numbers", remedy)
    return numbers


def _holds_text(values: NDArray[np.object_]) -> bool:
    """Return whether some object is text, which NumPy would read as a number."""
    return any(isinstance(value, str | bytes) for value in values.flat)


def _without_nan(field: str, values: ArrayLike) -> FloatArray:
    numbers = check_numbers(field, values, "pass a number or an array of them")
    if np.isnan(numbers).any():
        refuse(field, values, "holds NaN", "remove the NaN entries")
    return numbers


def _average(mixture: ScaleMixture, size: FloatArray, of_ratio: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return Σ weight · of_ratio(size/√v) for every size, in blocks of bounded memory."""
    roots = np.sqrt(mixture.variances)
    flat = size.ravel()
    result = np.zeros(flat.shape)
    step = max(1, _BLOCK // max(1, roots.size))
    for start in range(0, flat.size, step):
        # Beyond 100 standard deviations everything is 0 in double precision, and squares stay finite.
        ratio = np.minimum(flat[start : start + step, None] / roots, 100.0)
        result[start : start + step] = of_ratio(ratio) @ mixture.weights
    return result.reshape(size.shape)
