"""Plot data of records as types; malformed or newer kinds are ignored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.evidence.bands import QUANTILES, two_sample_band, uniform_band
from attncheck.evidence.plot_data import LABELLED

# Largest number on an axis.
_LARGEST = 1e12
# Maximum number of values in a plot; more take seconds to draw.
_MOST_VALUES = 10**8


class Counts(msgspec.Struct, frozen=True, tag="counts", tag_field="kind"):
    """Numbers of values, out of `count`, below each of `QUANTILES`.

    Under the null, values are uniform, up to a difference of `allowance` in the distribution function.
    """

    below: list[int]
    count: int
    allowance: float = 0.0

    def __post_init__(self) -> None:
        if len(self.below) != QUANTILES.size or not 0.0 <= self.allowance <= 1.0:
            raise ValueError("is not what attncheck writes")
        _check_counts(self.below, self.count)

    @property
    def quantiles(self) -> FloatArray:
        """The quantiles at which values are counted."""
        return QUANTILES

    @property
    def shares(self) -> tuple[FloatArray, FloatArray]:
        """The observed and expected shares between the quantiles, and beyond the outermost."""
        return _between(self.below, self.count), np.diff(QUANTILES, prepend=0.0, append=1.0)

    @property
    def band(self) -> tuple[IntArray, IntArray]:
        """The ends of the 99% band."""
        return uniform_band(self.count, self.allowance)

    def in_errors(self, below: ArrayLike) -> FloatArray:
        """Return deviations in standard errors, variance-stabilised by arcsin √share."""
        return 2.0 * math.sqrt(self.count) * (_angle(below, self.count) - _angle(QUANTILES, 1.0))


class PairedCounts(msgspec.Struct, frozen=True, tag="paired counts", tag_field="kind"):
    """Numbers of values among the lowest of a joint sample of `count` values and `against` reference values.

    ``below[k]`` counts the values among the ``pooled[k]`` lowest of the joint sample. `labels` are quantiles of the
    joint sample at `attncheck.evidence.plot_data.LABELLED`.
    """

    below: list[int]
    pooled: list[int]
    labels: list[float]
    count: int
    against: int

    def __post_init__(self) -> None:
        theirs = [both - ours for both, ours in zip(self.pooled, self.below, strict=True)]
        _check_counts(self.below, self.count)
        _check_counts(theirs, self.against)
        if len(self.labels) != len(LABELLED):
            raise ValueError("is not what attncheck writes")
        if not self.pooled or any(low >= high for low, high in itertools.pairwise([0, *self.pooled, self.total])):
            raise ValueError("is not what attncheck writes")

    @property
    def total(self) -> int:
        """The size of both samples."""
        return self.count + self.against

    @property
    def quantiles(self) -> FloatArray:
        """The quantiles of the joint sample at which values are counted."""
        return np.array(self.pooled) / self.total

    @property
    def shares(self) -> tuple[FloatArray, FloatArray]:
        """The observed shares between the quantiles, and those of the reference."""
        theirs = np.array(self.pooled) - np.array(self.below)
        return _between(self.below, self.count), _between(theirs, self.against)

    @property
    def band(self) -> tuple[IntArray, IntArray]:
        """The ends of the 99% band."""
        return two_sample_band(self.count, self.against, tuple(self.pooled))

    def in_errors(self, below: ArrayLike) -> FloatArray:
        """Return deviations from the reference in standard errors; see `Counts`."""
        ours = np.asarray(below)
        scale = 2.0 * math.sqrt(self.count * self.against / self.total)
        return scale * (_angle(ours, self.count) - _angle(np.array(self.pooled) - ours, self.against))


class Covariances(msgspec.Struct, frozen=True, tag="covariances", tag_field="kind"):
    """Predicted and observed covariances, with standard errors of their differences."""

    predicted: list[float]
    observed: list[float]
    error: list[float]
    count: int


class Density(msgspec.Struct, frozen=True, tag="density", tag_field="kind"):
    """Shares of values, and of a law with standard deviation `std`, in equal bins from -widest·std to widest·std."""

    shares: list[float]
    law: list[float]
    widest: float
    std: float
    count: int


class MatrixPlot(msgspec.Struct, frozen=True, tag="matrix", tag_field="kind"):
    """Observed and declared entries of a symmetric matrix, its lower triangle with standard errors.

    `of` names what a row is, `what` an entry.
    """

    observed: list[float]
    declared: list[float]
    error: list[float]
    of: str
    what: str
    size: int
    count: int

    def __post_init__(self) -> None:
        if self.size < 1 or 2 * len(self.observed) != self.size * (self.size + 1):
            raise ValueError("is not what attncheck writes")


class PositionsPlot(msgspec.Struct, frozen=True, tag="positions", tag_field="kind"):
    """Observed and declared square matrix; rows are positions of queries, columns of keys or inputs, as `of` says."""

    observed: list[float]
    declared: list[float]
    of: str
    what: str
    size: int

    def __post_init__(self) -> None:
        if self.size < 1 or len(self.observed) != self.size**2:
            raise ValueError("is not what attncheck writes")


class ProfilePlot(msgspec.Struct, frozen=True, tag="profile", tag_field="kind"):
    """Estimates at numbered places, which `of` names, with half-widths of their intervals and one declared value."""

    places: list[float]
    observed: list[float]
    half: list[float]
    declared: float
    of: str
    what: str


Plot = Counts | PairedCounts | Density | MatrixPlot | PositionsPlot | ProfilePlot | Covariances


def read_plot(raw: dict[str, Any] | None) -> Plot | None:
    """Return a record's plot data, or None if nothing can be drawn.

    Examples
    --------
    >>> read_plot({"kind": "density", "shares": [1.0], "law": [1.0], "widest": 4.0, "std": 1.0, "count": 10}).count
    10
    >>> read_plot({"kind": "hologram"}) is None
    True
    """
    if raw is None:
        return None
    try:
        plot = msgspec.convert(raw, Plot)
    except msgspec.ValidationError:
        return None
    return plot if _drawable(plot) else None


def leaves(plot: Counts | PairedCounts) -> int | None:
    """Return the index of the point farthest outside the 99% band, or None."""
    low, high = map(plot.in_errors, plot.band)
    outside = np.maximum((found := plot.in_errors(plot.below)) - high, low - found)
    worst = int(np.argmax(outside))
    return worst if outside[worst] > 0.0 else None


def _angle(part: ArrayLike, whole: float) -> FloatArray:
    return np.arcsin(np.sqrt(np.asarray(part) / whole))


def _between(below: ArrayLike, count: int) -> FloatArray:
    """Return the shares of values between quantiles, from cumulative numbers out of `count`."""
    return np.diff(np.asarray(below, dtype=float), prepend=0.0, append=float(count)) / count


def _check_counts(below: Sequence[int], count: int) -> None:
    """Reject numbers that do not increase from 0 to `count`."""
    if not 0 < count <= _MOST_VALUES or any(low > high for low, high in itertools.pairwise([0, *below, count])):
        raise ValueError("is not what attncheck writes")


def _drawable(plot: Plot) -> bool:
    """Return whether all lists except `labels` have one length, and all numbers fit on an axis."""
    values = {name: value for name, value in msgspec.structs.asdict(plot).items() if not isinstance(value, str)}
    lists = {name: value for name, value in values.items() if isinstance(value, list)}
    numbers = [value for name, value in values.items() if name not in lists] + [
        x for each in lists.values() for x in each
    ]
    lengths = {len(each) for name, each in lists.items() if name != "labels"}
    return len(lengths) == 1 and 0 not in lengths and max(map(abs, numbers)) < _LARGEST
