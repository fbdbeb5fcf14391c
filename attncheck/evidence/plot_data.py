"""Plot data of checks and diagnoses, stored in records and drawn on pages: a few dozen rounded numbers per plot.

No verdict or digest depends on them. Bands of distribution functions are exact intervals at every point, with the same
tail on each side. The error of each interval is 1% divided by the number of points, so that the whole band holds with
at least 99% chance.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np
import scipy
from numpy.typing import ArrayLike

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck.evidence.family import CONFIDENCE

_TAIL = 2.0 ** -np.arange(21, 5, -1)
#: Probabilities at which distribution functions are compared: multiples of 1/32, and powers of 2 down to 2⁻²¹ in the
#: tails.
QUANTILES: FloatArray = np.concatenate([_TAIL, np.arange(1, 32) / 32, 1.0 - _TAIL[::-1]])
#: Quantiles that are labelled in plots.
LABELLED = (0.0001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999)
# Entries of two matrices differ if their difference exceeds this share of the largest entry.
_TOLERANCE = 1e-3
# Maximum number of values in `Counts`, and of rows of a matrix.
_MOST_VALUES, _MOST_ROWS = 10**8, 1000


@functools.lru_cache(maxsize=256)
def uniform_band(count: int, allowance: float = 0.0) -> tuple[IntArray, IntArray]:
    """Return lower and upper limits for the number of uniform values up to each of `QUANTILES`.

    There are `count` values. The limits hold at all quantiles together with probability 99%, also for laws up to
    Kolmogorov distance `allowance` from uniform.

    Examples
    --------
    >>> low, high = uniform_band(500)
    >>> float(QUANTILES[31]), int(low[31]), int(high[31])
    (0.5, 208, 292)
    """
    tail = _tail(len(QUANTILES))
    low = scipy.stats.binom.ppf(tail, count, np.maximum(QUANTILES - allowance, 0.0))
    high = scipy.stats.binom.isf(tail, count, np.minimum(QUANTILES + allowance, 1.0))
    return np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)


@functools.lru_cache(maxsize=256)
def two_sample_band(ours: int, theirs: int, pooled: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """Return lower and upper limits for how many of the smallest values of two samples belong to the first one.

    There is a pair of limits for each number in `pooled`, which says how many of the smallest values are considered.
    `ours` and `theirs` are the sizes of the two samples.

    Examples
    --------
    >>> low, high = two_sample_band(500, 1500, (10, 1000))
    >>> low.tolist(), high.tolist()
    ([0, 223], [7, 277])
    """
    law, tail = scipy.stats.hypergeom(ours + theirs, ours, np.array(pooled)), _tail(len(pooled))
    return np.asarray(law.ppf(tail), dtype=np.int64), np.asarray(law.isf(tail), dtype=np.int64)


def _tail(points: int) -> float:
    """Return the tail probability on each side of the interval at one of `points` points of a 99% band.

    The band contains all points together with probability 99%.
    """
    return 0.5 * (1.0 - CONFIDENCE) / points


_Number = Annotated[float, msgspec.Meta(gt=-1e12, lt=1e12)]
_Numbers = Annotated[list[_Number], msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST_VALUES)]
_Indices = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=_MOST_ROWS)]], msgspec.Meta(min_length=1)]


class Counts(msgspec.Struct, frozen=True, tag="counts", tag_field="kind"):
    """Numbers of values, out of `count`, that lie at or below each of a few quantiles.

    They are compared with the uniform law, up to a difference of `allowance` in the distribution function, or with
    `against` reference values. In the second case, ``below[k]`` counts the values among the ``pooled[k]`` lowest of
    both samples, and `labels` are quantiles of both samples together, at the probabilities `LABELLED`.
    """

    below: Annotated[list[_Count], msgspec.Meta(min_length=1)]
    count: Annotated[int, msgspec.Meta(ge=1, le=_MOST_VALUES)]
    allowance: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    pooled: list[_Count] = []
    against: _Count = 0
    labels: list[_Number] = []

    @property
    def drawable(self) -> bool:
        """Whether lists have the right lengths, and quantiles and distribution functions increase from 0 to 1."""
        labels = len(LABELLED) if self.against else 0
        if len(self.below) != len(self.quantiles) or len(self.labels) != labels:
            return False
        steps = np.diff(self.quantiles, prepend=0.0, append=1.0)
        return bool((steps > 0.0).all() and (self.shares >= 0.0).all())

    @property
    def quantiles(self) -> FloatArray:
        """The quantiles up to which values are counted, of the uniform law or of both samples."""
        return np.array(self.pooled) / (self.count + self.against) if self.against else QUANTILES

    @property
    def shares(self) -> FloatArray:
        """The observed and the expected shares of values in the intervals between quantiles, in two rows.

        The first and the last interval extend beyond the outermost quantiles.
        """
        cdfs = np.array([np.array(self.below) / self.count, self._expected(self.below)])
        return np.diff(cdfs, prepend=0.0, append=1.0)

    @property
    def band(self) -> tuple[IntArray, IntArray]:
        """The lower and upper limits that contain the counts with probability 99%."""
        if self.against:
            return two_sample_band(self.count, self.against, tuple(self.pooled))
        return uniform_band(self.count, self.allowance)

    @property
    def farthest(self) -> int | None:
        """The index of the point farthest outside the band, or None."""
        low, high = map(self.in_errors, self.band)
        observed = self.in_errors(self.below)
        outside = np.maximum(observed - high, low - observed)
        worst = int(np.argmax(outside))
        return worst if outside[worst] > 0.0 else None

    def in_errors(self, below: ArrayLike) -> FloatArray:
        """Return the deviations of counts from their expected values, in standard errors.

        The variance is stabilised by the transformation arcsin √share.
        """
        size = self.count * self.against / (self.count + self.against) if self.against else self.count
        observed, expected = np.asarray(below) / self.count, self._expected(below)
        return 2.0 * math.sqrt(size) * (np.arcsin(np.sqrt(observed)) - np.arcsin(np.sqrt(expected)))

    def _expected(self, below: ArrayLike) -> FloatArray:
        """Return the expected distribution function at the quantiles: uniform, or that of the reference values."""
        return np.subtract(self.pooled, below) / self.against if self.against else QUANTILES


class _Means(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Observed and expected means, with the half-widths of the intervals of their differences."""

    observed: _Numbers
    expected: _Numbers
    half_width: _Numbers

    @property
    def drawable(self) -> bool:
        """Whether all lists have one length."""
        return len({len(field) for field in msgspec.structs.astuple(self) if isinstance(field, list)}) == 1

    @property
    def outside(self) -> BoolArray:
        """Which observed means lie outside their intervals around the expected ones."""
        return np.abs(np.subtract(self.observed, self.expected)) > self.half_width


class Matrix(_Means, frozen=True, kw_only=True, tag="matrix"):
    """Chosen entries of a matrix of `quantity`, observed and expected.

    Entry k stands in row `rows[k]`, the position of a query, and in column `columns[k]`, the position of a key or an
    input: `axis` says which.
    """

    rows: _Indices
    columns: _Indices
    axis: str
    quantity: str


class Estimates(_Means, frozen=True, kw_only=True, tag="estimates"):
    """Estimates of a `quantity` at several `indices`; `axis` says what these are, such as heads or positions."""

    indices: _Numbers
    axis: str
    quantity: str


Plot = Counts | Matrix | Estimates


def read_plot(raw: dict[str, Any] | None) -> Plot | None:
    """Return a record's plot data, or None if they are missing, damaged or of an unknown kind.

    Examples
    --------
    >>> read_plot({"kind": "counts", "below": [0], "count": 10}) is None
    True
    >>> read_plot({"kind": "hologram"}) is None
    True
    """
    with contextlib.suppress(msgspec.ValidationError):
        plot: Plot | None = msgspec.convert(raw, Plot | None)
        return plot if plot is not None and plot.drawable else None
    return None


def cdf_of_uniform(values: FloatArray, allowance: float) -> Counts:
    """Return the number of sorted values that lie at or below each of `attncheck.evidence.plot_data.QUANTILES`.

    Examples
    --------
    >>> plot = cdf_of_uniform((np.arange(640) + 0.5) / 640, 0.0)
    >>> plot.below[16:19], plot.count
    ([20, 40, 60], 640)
    """
    below = np.searchsorted(values, QUANTILES, side="right").tolist()
    return Counts(below, int(values.size), round(allowance, 5))


def cdf_of_two(ours: FloatArray, theirs: FloatArray, rounding: Callable[[FloatArray], FloatArray]) -> Counts:
    """Count the values of the first of two sorted samples, and of both, up to quantiles of both samples together.

    `rounding` maps a value to the distance within which others count as equal to it.

    Examples
    --------
    >>> cdf_of_two(np.array([1.0, 3.0]), np.array([2.0, 4.0]), np.zeros_like).below
    [1, 1, 2]
    """
    values = np.sort(np.concatenate([ours, theirs]))
    points = values[np.ceil(QUANTILES * values.size).astype(int) - 1]
    below, below_theirs = (
        np.searchsorted(sample, points + rounding(points), side="right") for sample in (ours, theirs)
    )
    pooled, indices = np.unique(below + below_theirs, return_index=True)
    is_inside = pooled < values.size
    return Counts(
        below=below[indices][is_inside].tolist(),
        count=int(ours.size),
        pooled=pooled[is_inside].tolist(),
        against=int(theirs.size),
        labels=_rounded(np.quantile(values, LABELLED, method="inverted_cdf")),
    )


def positions(observed: ArrayLike, expected: ArrayLike, axis: str, quantity: str) -> Matrix:
    """Return the plot of a matrix with a row for each query, and a column for each key or input (`axis`).

    Examples
    --------
    >>> positions(np.eye(2), np.ones((2, 2)), "key", "attention weights").observed
    [1.0, 0.0, 0.0, 1.0]
    """
    both = np.array([observed, expected], dtype=np.float64)
    entries = _columns(both[0], both[1], np.full(both[0].size, _TOLERANCE * np.abs(both).max()))
    rows, columns = np.indices(both[0].shape).reshape(2, -1).tolist()
    return Matrix(**entries, rows=rows, columns=columns, axis=axis, quantity=quantity)


def profile(
    indices: ArrayLike, observed: ArrayLike, half_width: ArrayLike, expected: float, axis: str, quantity: str
) -> Estimates:
    """Return the plot of estimates at several indices, with the half-widths of their intervals and one expected value.

    Examples
    --------
    >>> profile([0, 1], [1.0, 1.7], [0.1, 0.1], 1.0, "head", "score variance").observed
    [1.0, 1.7]
    """
    columns = _columns(observed, np.full(np.shape(observed), expected), half_width)
    return Estimates(**columns, indices=_rounded(indices), axis=axis, quantity=quantity)


def _columns(observed: ArrayLike, expected: ArrayLike, half_width: ArrayLike) -> dict[str, Any]:
    """Return the rounded fields that `Matrix` and `Estimates` share, by name."""
    return {"observed": _rounded(observed), "expected": _rounded(expected), "half_width": _rounded(half_width)}


def _rounded(values: ArrayLike) -> list[float]:
    """Return values, rounded to four significant digits."""
    return [float(f"{value:.4g}") for value in np.asarray(values, dtype=np.float64).ravel()]
