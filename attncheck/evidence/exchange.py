"""Tests of exchangeability: exact repeats, differences between calls, trends within a call, and ties at extremes."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck._lib.errors import check_integer, check_number
from attncheck.evidence.families import Count
from attncheck.evidence.family import (
    DRAWS,
    QUANTILE,
    TAIL,
    CondensedData,
    Family,
    Outcome,
    check_level,
    finite_array,
    normal_power,
)
from attncheck.evidence.ranks import ranker
from attncheck.evidence.summaries import Events, NormalScore, normal_score

# Maximum number of distinct hashes in condensed data.
_REMEMBERED = 2**17
# The law of larger statistics cannot be computed; its relative standard deviation is below 1e-7.
_LARGEST = 1e15
# There is a p-value only if the number of draws minus that of calls is at least this.
_FEWEST = 30
#: Bound on the chance that rounding makes a second number equal to the largest one, x, of a sample. The chance is the
#: relative step of single precision, at most 2^-23, times x f(x)/(1 - F(x)), for numbers of density f and cdf F. For a
#: normal law, the second factor is about x²: 28 for the largest of 10⁶ numbers. For heavier tails, it is smaller.
TIE = 2.0**-23 * 32
# Number of calls assumed in planning: with fewer calls, ties are rarer.
_CALLS = 100


@dataclass(frozen=True)
class Repeats(Family):
    """Test that all draws differ; the effect is the share of draws that repeat an earlier one.

    Examples
    --------
    >>> outcome = Repeats().test(np.array([4, 7, 4, 9], dtype=np.uint64))
    >>> outcome.effect, outcome.p_value
    (0.25, 0.0)
    >>> Repeats().size(alternative=0.01, level=5e-4, power=0.99)
    459
    """

    tail_exact = True
    across_blocks = True
    null_effect = 0.0
    # The p-value is 0 or 1, so it is not uniform under the null.
    continuous = False
    _farthest = 1.0

    def condensed(self, *data: Any) -> CondensedData:
        """Condense hashes of draws, (draws,), to the number of repeats and the distinct hashes.

        Hashes are integers that are equal for equal draws only. At most 2^17 of them are retained, selected by another
        hash. Only repeats of retained ones count, so that the effect is a lower bound.
        """
        conclude = Count(0.0).test
        return CondensedData(_remembered, lambda *parts: conclude(*parts[:2]), _merged).add(*data)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of any repeat among `size` draws, if each draw is a repeat with chance `alternative`."""
        return Count(0.0).power(alternative, size, level)


@dataclass(frozen=True)
class Calls(Family):
    """Kruskal–Wallis rank test for differences between calls; `calls` is the number of calls per look, for planning.

    The effect is the share of the variance of the ranks that lies between calls, minus its expectation under the null.

    Examples
    --------
    >>> values = np.arange(60.0)
    >>> outcome = Calls(3).test(values, np.array([20, 20, 20]))
    >>> round(outcome.effect, 3), outcome.p_value < 1e-10
    (0.887, True)
    """

    calls: int
    minimum_count: ClassVar[int] = 2
    null_effect = 0.0
    _farthest = 0.999

    def __post_init__(self) -> None:
        check_integer("calls", self.calls, 2, "pass how many calls are compared")

    def condensed(self, *data: Any) -> CondensedData:
        """Condense one number per draw, and the number of draws of each call, to sums of ranks and their squares.

        Ranks are those among the values in `data`, also for data that are added later.
        """
        rank = ranker(finite_array("values", data[0]))

        def sums(values: ArrayLike, counts: ArrayLike) -> tuple[int, int, float, float, float]:
            ranks, sizes = rank(finite_array("values", values)) - 0.5, np.asarray(counts, dtype=np.int64)
            of_calls = np.add.reduceat(ranks, _starts(sizes))
            squares = float((of_calls**2 / sizes).sum()), float((ranks**2).sum())
            return len(ranks), len(sizes), float(ranks.sum()), *squares

        def conclude(count: int, calls: int, total: float, between: float, squares: float) -> Outcome:
            mean = total * total / count
            return self._outcome(count, calls - 1, max(0.0, between - mean), max(0.0, squares - mean))

        return CondensedData(sums, conclude).add(*data)

    def _outcome(self, count: int, freedom: int, between: float, total: float) -> Outcome:
        """Return the outcome for the sums of squares between calls and in total."""
        if total == 0.0 or freedom == 0 or count <= freedom + 1:
            return Outcome(1.0, 0.0, 0.0, 1.0, 0.0, 0)  # there is a single call, or all values are equal
        statistic = (count - 1) * between / total
        # If calls differ, the ratio of the variance between calls to that within calls has about a noncentral
        # chi-square law.
        odds = (count - 1) * between / max(total - between, 1e-9 * total)
        low, high = (self._share(self._noncentrality(odds, freedom, tail), count) for tail in (TAIL, 1 - TAIL))
        effect = self._share(odds - freedom, count)
        p_value = float(special.chdtrc(freedom, statistic))
        summary = NormalScore(normal_score(1.0 - p_value, p_value), 1.0, "excess")
        return Outcome(p_value, effect, min(low, effect), max(high, effect), 0.0, count, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the power if a share `alternative` of the variance lies between calls."""
        remedy = "pass a share of the variance in [0, 1]"
        share = check_number("alternative", alternative, remedy, minimum=0.0, maximum=1.0)
        count, freedom = check_integer("size", size, 1, DRAWS), self.calls - 1
        critical = float(special.chdtri(freedom, check_level(level)))
        if share >= 1.0:
            return 1.0
        return float(scipy.stats.ncx2.sf(critical, freedom, count * share / (1.0 - share)))

    @staticmethod
    def _share(noncentrality: float, count: int) -> float:
        return noncentrality / (noncentrality + count)

    @staticmethod
    def _noncentrality(statistic: float, freedom: int, tail: float) -> float:
        """Return the noncentrality of a chi-square law that exceeds `statistic` with chance `tail`.

        `freedom` is its number of degrees of freedom. The result is 0 if the central law exceeds `statistic` with a
        larger chance.
        """
        if float(scipy.stats.chi2.sf(statistic, freedom)) >= tail:
            return 0.0
        if statistic > _LARGEST:
            return statistic
        most = 4.0 * statistic + 100.0 * freedom
        excess = functools.partial(scipy.stats.ncx2.sf, statistic, freedom)
        return float(scipy.optimize.brentq(lambda x: excess(x) - tail, 0.0, most))


def _starts(sizes: IntArray) -> IntArray:
    """Return the index of the first draw of each call."""
    return np.cumsum(sizes) - sizes


def _remembered(marks: NDArray[np.uint64]) -> tuple[int, int, NDArray[np.uint64], int]:
    """Return the number of repeats, the number of all hashes, the distinct hashes, and 0.

    The last number says how often `_merged` has halved the set of distinct hashes.
    """
    different = np.unique(marks)
    return len(marks) - len(different), len(marks), different, 0


def _merged(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """Merge the results of `_remembered` for two sets of draws."""
    halved = max(one[3], two[3])
    first, second = _halved(one[2], halved), _halved(two[2], halved)
    marks = np.union1d(first, second)
    repeats = one[0] + two[0] + len(first) + len(second) - len(marks)
    while len(marks) > _REMEMBERED:
        halved += 1
        marks = _halved(marks, halved)
    return repeats, one[1] + two[1], marks, halved


def _halved(marks: NDArray[np.uint64], times: int) -> NDArray[np.uint64]:
    """Select about one of ``2**times`` hashes, by the leading bits of a second, multiplicative hash."""
    mixed = marks * np.uint64(0x9E3779B97F4A7C15)
    return marks[mixed < np.uint64(2 ** (64 - times))] if times else marks


@dataclass(frozen=True)
class Trend(Family):
    """Permutation test for numbers that rise or fall from the first draw of a call to the last.

    Each number is replaced by the normal score of its rank. For exchangeable draws, the sum of score times position has
    mean 0 and known variance; sums and variances add up over calls. The p-value is computed as for the correlation of
    two normal samples, which has nearly the same tails. The effect is the correlation of score and position.

    Examples
    --------
    >>> outcome = Trend().test(np.exp(np.arange(40.0) % 20), np.array([20, 20]))
    >>> round(outcome.effect, 2), outcome.p_value < 1e-8
    (0.99, True)
    >>> Trend().size(alternative=0.1, level=5e-4, power=0.99)
    3374
    """

    null_effect = 0.0
    _farthest = 1.0

    def condensed(self, *data: Any) -> CondensedData:
        """Condense one number per draw, and the number of draws of each call, to sums over the calls.

        Ranks are those among the values in `data`, also for data that are added later.
        """
        ranks = ranker(finite_array("values", data[0]))

        def sums(values: ArrayLike, counts: ArrayLike) -> tuple[Any, ...]:
            return self._sums(special.ndtri(ranks(finite_array("values", values))), counts)

        return CondensedData(sums, self._outcome).add(*data)

    @staticmethod
    def _sums(scores: FloatArray, counts: ArrayLike) -> tuple[float, float, int, int]:
        """Return Σ score · position over all draws, its variance, and two counts.

        The counts are the number of draws minus the number of calls, and the number of calls.
        """
        sizes = np.asarray(counts, dtype=np.int64)
        starts = _starts(sizes)
        index = np.arange(len(scores)) - np.repeat(starts, sizes)
        # Positions run from -1 to 1, in calls of any length.
        position = (2.0 * index - np.repeat(sizes - 1, sizes)) / np.repeat(np.maximum(sizes - 1, 1), sizes)
        spread = scores - np.repeat(np.add.reduceat(scores, starts) / sizes, sizes)
        products, moments, squares = (
            np.add.reduceat(part, starts) for part in (position * spread, position * position, spread * spread)
        )
        variance = float((moments * squares / np.maximum(sizes - 1, 1)).sum())
        return float(products.sum()), variance, int((sizes - 1).sum()), len(sizes)

    @staticmethod
    def _outcome(product: float, variance: float, freedom: int, calls: int) -> Outcome:
        if variance <= 0.0 or freedom < _FEWEST:
            return Outcome(1.0, 0.0, -1.0, 1.0, 0.0, 0)  # there are too few draws, or all values are equal
        z, root = product / math.sqrt(variance), math.sqrt(freedom)
        p_value = float(special.betaincc(0.5, 0.5 * (freedom - 1), min(1.0, z * z / freedom)))
        interval = (z - QUANTILE) / root, (z + QUANTILE) / root
        summary = NormalScore(math.copysign(normal_score(1.0 - 0.5 * p_value, 0.5 * p_value), z), freedom)
        return Outcome(p_value, z / root, *interval, 0.0, freedom + calls, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting a correlation of `alternative` in one call."""
        remedy = "pass a correlation, e.g. 0.05"
        correlation = check_number("alternative", alternative, remedy, minimum=-1.0, maximum=1.0)
        count = check_integer("size", size, 1, DRAWS)
        if count <= _FEWEST:
            return 0.0
        return normal_power(correlation * math.sqrt(count - 1), level)

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, -alternative


@dataclass(frozen=True)
class Extremes(Family):
    """Test for ties at the largest number of each call, and of all calls: a continuous law has none.

    The effect is the share of draws that tie. The null allows ties that are due to rounding, about one for 260,000
    largest numbers. The p-value comes from a Poisson law and is very conservative.

    Examples
    --------
    >>> sides = np.array([[0.5, 0.1], [2.0, 0.3], [2.0, 0.2], [1.0, 0.4]])
    >>> outcome = Extremes().test(sides, np.array([4]))
    >>> outcome.effect, round(outcome.p_value, 6)
    (0.25, 1.5e-05)
    >>> Extremes().size(alternative=0.01, level=5e-4, power=0.99)
    838
    """

    tail_exact = True
    null_effect = 0.0
    # Without a tie the p-value is 1, so it is not uniform under the null.
    continuous = False
    _farthest = 1.0

    def condensed(self, *data: Any) -> CondensedData:
        """Condense `sides`, (draws, sides), and the number of draws of each call, (calls,).

        A side is a number of each draw whose largest values are compared, such as the largest output. Equal numbers
        must belong to different draws. A side whose largest number is 0 has no ties.
        """
        return CondensedData(_reached, self._outcome, _higher).add(*data)

    def _outcome(self, draws: int, calls: int, call_ties: int, maxima: FloatArray, maximal_calls: IntArray) -> Outcome:
        """Return the outcome for the numbers that `_reached` returns."""
        ties = call_ties + int(np.maximum(maximal_calls - 1, 0).sum())
        outcome = Count(0.0).test(min(ties, draws), draws)
        expected_ties = _rate(calls, len(maxima))
        p_value = float(special.pdtrc(ties - 1, expected_ties)) if ties else 1.0
        summary = Events(min(ties, draws), draws, min(1.0, expected_ties / draws))
        return dataclasses.replace(outcome, p_value=p_value, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the power if a draw's number equals the bound of its law with chance `alternative`."""
        share = check_number("alternative", alternative, "pass a share of draws in [0, 1]", minimum=0.0, maximum=1.0)
        draws = check_integer("size", size, 1, DRAWS)
        expected_ties = _rate(_CALLS, 2)
        fewest = next(ties for ties in range(1, 1000) if special.pdtrc(ties - 1, expected_ties) < check_level(level))
        return float(scipy.stats.binom.sf(fewest, draws, share))


def _rate(calls: int, sides: int) -> float:
    """Return the expected number of ties that are due to rounding."""
    return TIE * sides * (calls + 1)


def _reached(sides: ArrayLike, counts: ArrayLike) -> tuple[int, int, int, FloatArray, IntArray]:
    """Return the numbers of draws, calls and ties within calls, the largest number of each side, and its calls.

    The fourth result holds the largest numbers, (sides,), and the last one the number of calls that contain each of
    them, (sides,). A tie is a further number that equals the largest number of its call, unless that is 0.
    """
    numbers, sizes = finite_array("sides", sides), np.asarray(counts, dtype=np.int64)
    tops = np.maximum.reduceat(numbers, _starts(sizes))
    within = (numbers == np.repeat(tops, sizes, axis=0)) & (numbers != 0.0)
    largest = tops.max(axis=0)
    reached = ((tops == largest) & (tops != 0.0)).sum(axis=0)
    return len(numbers), len(sizes), int(within.sum() - (tops != 0.0).sum()), largest, reached


def _higher(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """Merge the results of `_reached` for two sets of calls."""
    largest = np.maximum(one[3], two[3])
    reached = sum(np.where(result[3] == largest, result[4], 0) for result in (one, two))
    return *(first + second for first, second in zip(one[:3], two[:3], strict=True)), largest, reached
