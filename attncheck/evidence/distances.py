"""Families that compare laws by the Kolmogorov distance."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck._lib.errors import check_integer, check_number
from attncheck.evidence.family import (
    CONFIDENCE,
    CondensedData,
    Family,
    Outcome,
    check_count,
    check_level,
    finite_array,
    unit_array,
)
from attncheck.evidence.plot_data import Counts, cdf_of_two, cdf_of_uniform
from attncheck.evidence.ranks import (
    cells_of,
    rank_score,
    score_of_cells,
    score_of_sum,
    shift_score,
    shifts,
    spread_of_cells,
)
from attncheck.evidence.summaries import NormalScore

_DISTANCE = "pass a distance between distribution functions, e.g. 0.05"
# Number of cells into which [0, 1] is divided for condensed data.
_CELLS = 2**16
# Relative rounding error of short sums in single precision.
_ROUNDING = 4e-6
_PER_DRAW = "pass how many independent values one draw holds, e.g. per_draw=1"


@dataclass(frozen=True)
class Uniform(Family):
    """Test that values are independent and uniform on [0, 1], up to an allowed Kolmogorov distance.

    The one-sample Kolmogorov–Smirnov test is applied to the distance minus the allowance. It is valid for every law
    within distance `allowance` of uniform.

    Parameters
    ----------
    allowance : float
        Largest distance under the null, in [0, 1]; must not be fitted to the data.
    per_draw : int
        Independent values in one draw.

    Examples
    --------
    >>> family = Uniform()
    >>> round(family.test((np.arange(1000) + 0.5) / 1000).effect, 6)
    0.0005
    >>> family.size(alternative=0.05, level=5e-4, power=0.99), round(family.mde(4108, 5e-4, 0.99), 4)
    (4108, 0.05)
    """

    tail_exact = True

    allowance: float = 0.0
    per_draw: int = 1
    comparable = True
    _farthest = 1.0

    def __post_init__(self) -> None:
        check_number("allowance", self.allowance, _DISTANCE, minimum=0.0, maximum=1.0)
        check_integer("per_draw", self.per_draw, 1, _PER_DRAW)

    @property
    def one_per_draw(self) -> bool:
        """Whether each draw gives one number."""
        return self.per_draw == 1

    @property
    def null_effect(self) -> float:
        """The largest distance that the null allows."""
        return float(self.allowance)

    @property
    def continuous(self) -> bool:
        """Whether p-values are uniform under the null: only without an allowance; with one, they are conservative."""
        return self.allowance == 0.0

    def test(self, values: ArrayLike) -> Outcome:
        """Return the outcome for probability integral transforms in [0, 1], with the DKW–Massart interval."""
        array = np.sort(unit_array("values", values))
        plot = cdf_of_uniform(array, self.allowance)
        return self._outcome(one_sample_distance(array), array.size, plot, shift_score(array, self.allowance))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense values in [0, 1] to the numbers of values in cells and the sum of their `shifts`.

        The distance decreases by at most the width of a cell.
        """
        edges = np.arange(_CELLS) / _CELLS

        def sums(values: ArrayLike) -> tuple[IntArray, float]:
            array = unit_array("values", values)
            cells = np.ceil(array * _CELLS).astype(np.int64)
            return np.bincount(cells, minlength=_CELLS + 1), float(shifts(array, self.allowance).sum())

        def conclude(counts: IntArray, total: float) -> Outcome:
            count = int(counts.sum())
            difference = np.cumsum(counts)[:-1] / count - edges
            summary = score_of_sum(total, count, self.allowance)
            # There is no plot, because the cells are too coarse for the tails.
            return self._outcome(float(np.abs(difference).max()), count, None, summary)

        return CondensedData(sums, conclude).add(*data)

    def _outcome(self, distance: float, count: int, plot: Counts | None, summary: NormalScore) -> Outcome:
        p_value = one_sample_tail(max(0.0, distance - self.allowance), count)
        interval, at_most = _around(distance, band(count, 1.0 - CONFIDENCE)), self.allowance > 0.0
        return Outcome(p_value, distance, *interval, self.null_effect, count, plot, at_most, summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return a guaranteed lower bound of the chance of detecting a law at distance `alternative`.

        The bound uses only the point of largest distance, and holds wherever this point is.
        """
        distance = check_number("alternative", alternative, _DISTANCE, minimum=0.0, maximum=1.0)
        count = check_integer("size", size, 1, "pass a number of draws") * self.per_draw
        return least_power(distance - self.allowance - _critical(check_level(level), count), count)


@dataclass(frozen=True)
class TwoSample(Family):
    """Test that two samples have the same law.

    This is the two-sample Kolmogorov–Smirnov test, with p-values from the limiting law at the effective size n·m/(n +
    m). For sizes from 20 to 3000, p-values are never too small below 0.05, and at most 3% too small above; SciPy's
    ``method="asymp"`` is up to 1.6 times too small. Ties only enlarge p-values.

    To allow for single precision, each value moves in favour of the null by 4e-6 times the largest of three numbers:
    its absolute value, the 90% quantile of all absolute values, and `unit`.

    Parameters
    ----------
    ratio : float
        Size of the reference divided by that of the sample; for planning.
    per_draw : int
        Independent values in one draw of the sample.
    unit : float
        Minimum size of numbers to which rounding errors are relative: 1 for logarithms.

    Examples
    --------
    >>> family = TwoSample(ratio=4)
    >>> family.test(np.arange(200.0), np.arange(800.0) / 4).p_value
    1.0
    >>> family.size(alternative=0.1, level=5e-4, power=0.99)
    1292
    >>> family.test(np.full(200, 0.1), np.full(800, np.float32(0.1))).effect
    0.0
    """

    ratio: float = 1.0
    per_draw: int = 1
    unit: float = 0.0
    #: With fewer values, p-values from the limiting law are very conservative.
    minimum_count: ClassVar[int] = 20
    null_effect = 0.0
    # The distance is discrete, so p-values are conservative instead of uniform.
    continuous = False
    _farthest = 1.0

    def __post_init__(self) -> None:
        check_number("ratio", self.ratio, "pass a size ratio, e.g. ratio=4", above=0.0)
        check_integer("per_draw", self.per_draw, 1, _PER_DRAW)
        check_number("unit", self.unit, "pass a size of numbers, e.g. unit=1 for logarithms", minimum=0.0)

    @property
    def comparable(self) -> bool:
        """Whether a rank test may compare effects on blocks of a sample with effects on blocks of reference draws."""
        return self.per_draw == 1

    @property
    def one_per_draw(self) -> bool:
        """Whether each draw gives one number."""
        return self.per_draw == 1

    def test(self, sample: ArrayLike, reference: ArrayLike) -> Outcome:
        """Return the outcome for a sample and an independent reference, of any shapes; `effect` is the distance."""
        ours = np.sort(finite_array("sample", sample), axis=None)
        theirs = np.sort(finite_array("reference", reference), axis=None)
        check_count("sample", ours.size, self.minimum_count)
        check_count("reference", theirs.size, self.minimum_count)
        rounding = _rounding(ours, theirs, self.unit)
        distance = _two_sample_distance(ours, theirs, rounding)
        plot = cdf_of_two(ours, theirs, rounding)
        summary = rank_score(ours, theirs, rounding, logarithms=self.unit == 1.0)
        return _outcome_of_two(distance, ours.size, theirs.size, plot, summary)

    def condensed(self, *data: Any) -> CondensedData:
        """Condense two samples to their counts up to fixed points, which divide the values in `data` evenly.

        The distance decreases by at most the probability between two points. More data can be added, but do not change
        the points.
        """
        ours, theirs = (finite_array("values", part).ravel() for part in data)
        points = np.unique(cells_of(np.concatenate([ours, theirs])))
        edges = points, points + _rounding(ours, theirs, self.unit)(points)

        def counts(sample: ArrayLike, reference: ArrayLike) -> tuple[IntArray, ...]:
            """Return the numbers of values of both samples up to each point, and up to each point plus rounding.

            Both arrays are (2, points). The third array holds the sizes of both samples.
            """
            both = [np.sort(finite_array("values", part), axis=None) for part in (sample, reference)]
            below = [np.array([np.searchsorted(part, edge, side="right") for part in both]) for edge in edges]
            return *below, np.array([part.size for part in both])

        def conclude(below: IntArray, rounded: IntArray, sizes: IntArray) -> Outcome:
            if sizes.min() < self.minimum_count:
                return self.nothing()
            count, reference_size = map(int, sizes)
            distance = float((below / sizes[:, None] - rounded[::-1] / sizes[::-1, None]).max(initial=0.0))
            ranks = below.sum(axis=0) / sizes.sum()
            cells = np.diff(rounded, axis=1, prepend=0, append=sizes[:, None])
            spread = spread_of_cells(points, ranks) if self.unit == 1.0 else None
            summary = score_of_cells(cells[0], cells.sum(axis=0), spread)
            return _outcome_of_two(distance, count, reference_size, None, summary)

        return CondensedData(counts, conclude).add(*data)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return an approximate lower bound of the power, as for `Uniform` at the effective size."""
        distance = check_number("alternative", alternative, _DISTANCE, minimum=0.0, maximum=1.0)
        count = check_integer("size", size, 1, "pass a number of draws") * self.per_draw
        check_level(level)
        if min(count, int(count * self.ratio)) < self.minimum_count:
            return 0.0
        effective = count * self.ratio / (1.0 + self.ratio)
        critical = float(special.kolmogi(level)) / math.sqrt(effective)
        return least_power(distance - critical, effective)


# Cached, because plans with other allowances and caps try the same sizes.
@functools.lru_cache(maxsize=4096)
def _critical(level: float, count: int) -> float:
    """Return the Kolmogorov distance that the empirical law of `count` values exceeds with chance `level`."""
    return float(scipy.stats.kstwo.isf(level, count))


def one_sample_distance(ordered: FloatArray) -> float:
    """Return the Kolmogorov distance of sorted values from the uniform law on [0, 1]."""
    steps = np.arange(ordered.size + 1) / ordered.size
    return float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))


def one_sample_tail(distance: float, count: int) -> float:
    """Return P(D > distance) for the one-sample Kolmogorov–Smirnov statistic D of `count` values.

    SciPy's ``kstwo.sf`` overflows below 0.2/√count for some counts (65,000), where the chance is 1 to twelve
    digits.

    Examples
    --------
    >>> one_sample_tail(1e-4, 65_000), round(one_sample_tail(0.01, 10_000), 3)
    (1.0, 0.268)
    """
    if distance < 0.2 / math.sqrt(count):
        return 1.0
    return float(scipy.stats.kstwo.sf(distance, count))


def least_power(margin: float, count: float) -> float:
    """Return the minimum over q of P(Binomial(count, q) > count·(q − margin)), for any real `count`.

    The probability of the complement is replaced by an incomplete beta function, which is never smaller. The result is
    thus a valid bound. It is smooth in q, with its minimum near q = (1 + margin)/2, the middle of the grid.

    Examples
    --------
    >>> round(least_power(0.0368, 1000), 3)
    0.989
    """
    if margin <= 0.0:
        return 0.0
    if margin >= 1.0:
        return 1.0
    chances = np.linspace(margin, 1.0, 65)
    below = count * (chances - margin)
    missed = special.betainc(count - below, below + 1.0, 1.0 - chances)
    return float(1.0 - np.max(missed))


def _rounding(ours: FloatArray, theirs: FloatArray, unit: float) -> Callable[[FloatArray], FloatArray]:
    """Return a function that bounds the single-precision rounding error of each value in two arrays."""
    size = max(unit, float(np.quantile(np.abs(np.concatenate([ours, theirs])), 0.9)))
    return lambda values: _ROUNDING * np.maximum(np.abs(values), size)


def _two_sample_distance(ours: FloatArray, theirs: FloatArray, rounding: Callable[[FloatArray], FloatArray]) -> float:
    """Return the largest value of F(x) − G(x + δ) and G(x) − F(x + δ) over all x, with δ the rounding error of x.

    F and G are the empirical distribution functions of two sorted arrays.
    """

    def above(one: FloatArray, two: FloatArray) -> float:
        ranks = np.arange(1, one.size + 1) / one.size
        return float(np.max(ranks - np.searchsorted(two, one + rounding(one), side="right") / two.size))

    return max(above(ours, theirs), above(theirs, ours))


def band(count: int, error: float) -> float:
    """Return the half-width of a band that contains the whole distribution function with chance 1 − `error`."""
    return math.sqrt(math.log(2.0 / error) / (2.0 * count))


def _outcome_of_two(distance: float, ours: int, theirs: int, plot: Counts | None, summary: NormalScore) -> Outcome:
    p_value = special.kolmogorov(math.sqrt(ours * theirs / (ours + theirs)) * distance)
    # Each of the two bands takes half of the error probability 1 − CONFIDENCE.
    half = band(ours, 0.5 - 0.5 * CONFIDENCE) + band(theirs, 0.5 - 0.5 * CONFIDENCE)
    interval = _around(distance, half)
    return Outcome(p_value, distance, *interval, 0.0, ours, plot, summary=summary)


def _around(distance: float, half: float) -> tuple[float, float]:
    return max(0.0, distance - half), min(1.0, distance + half)
