"""Independence between draws: exact repeats, and differences between calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from attncheck._lib.errors import check_number, check_whole
from attncheck.evidence.families import Count
from attncheck.evidence.family import (
    DRAWS,
    TAIL,
    CondensedData,
    Family,
    Outcome,
    check_level,
    finite_array,
    smallest_real,
)
from attncheck.evidence.ranks import ranker
from attncheck.evidence.summaries import NormalScore, normal_score

# Most marks kept.
_REMEMBERED = 2**17


@dataclass(frozen=True)
class Repeats(Family):
    """Repeats among draws that must all differ; the effect is the share of repeated draws.

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
    # The p-value is 0 or 1.
    continuous = False
    _farthest = 1.0

    def test(self, marks: NDArray[np.uint64]) -> Outcome:
        """Return the outcome for integer marks, (draws,), equal for equal draws only."""
        return Count(0.0).test(len(marks) - len(np.unique(marks)), len(marks))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to the number of repeats and at most 2^17 distinct marks, selected by hash.

        Only repeats of kept marks count, so that the effect is a lower bound.
        """
        conclude = Count(0.0).test
        return CondensedData(_remembered, lambda *seen: conclude(*seen[:2]), _merged).add(*data)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of any repeat among `size` draws, each with chance `alternative`."""
        return Count(0.0).power(alternative, size, level)


@dataclass(frozen=True)
class Calls(Family):
    """Kruskal–Wallis rank test for differences between calls; `calls` is the number per look, for planning.

    The effect is the share of the variance of the ranks between calls, minus its expectation under the null.

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
        check_whole("calls", self.calls, 2, "pass how many calls are compared")

    def test(self, values: ArrayLike, counts: ArrayLike) -> Outcome:
        """Return the outcome for one number per draw, (draws,), and the draws of each call, (calls,)."""
        data, sizes = finite_array("values", values), np.asarray(counts, dtype=np.int64)
        ranks = scipy.stats.rankdata(data)
        means = np.add.reduceat(ranks, np.concatenate([[0], np.cumsum(sizes)[:-1]])) / sizes
        between = float((sizes * (means - ranks.mean()) ** 2).sum())
        return self._outcome(len(data), len(sizes) - 1, between, float(((ranks - ranks.mean()) ** 2).sum()))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to sums of the draws' ranks by call, taken among the first data."""
        rank = ranker(finite_array("values", data[0]))

        def sums(values: ArrayLike, counts: ArrayLike) -> tuple[int, int, float, float, float]:
            ranks, sizes = rank(finite_array("values", values)) - 0.5, np.asarray(counts, dtype=np.int64)
            of_calls = np.add.reduceat(ranks, np.concatenate([[0], np.cumsum(sizes)[:-1]]))
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
        # Between-call over within-call variance: about noncentral chi-square if calls differ.
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
        count, freedom = check_whole("size", size, 1, DRAWS), self.calls - 1
        critical = float(special.chdtri(freedom, check_level(level)))
        if share >= 1.0:
            return 1.0
        return float(scipy.stats.ncx2.sf(critical, freedom, count * share / (1.0 - share)))

    @staticmethod
    def _share(noncentrality: float, count: int) -> float:
        return noncentrality / (noncentrality + count)

    @staticmethod
    def _noncentrality(statistic: float, freedom: int, tail: float) -> float:
        """Return the noncentrality at which `statistic` is exceeded with chance `tail`, or 0."""
        if float(scipy.stats.chi2.sf(statistic, freedom)) >= tail:
            return 0.0
        most = 4.0 * statistic + 100.0 * freedom
        return min(most, smallest_real(lambda x: scipy.stats.ncx2.sf(statistic, freedom, x) >= tail, 0.0, most))


def _remembered(marks: NDArray[np.uint64]) -> tuple[int, int, NDArray[np.uint64], int]:
    """Return the numbers of repeats and of marks, the distinct marks, and 0 halvings."""
    different = np.unique(marks)
    return len(marks) - len(different), len(marks), different, 0


def _merged(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Merge the condensed marks of two sets of draws."""
    halved = max(one[3], other[3])
    first, second = _halved(one[2], halved), _halved(other[2], halved)
    marks = np.union1d(first, second)
    repeats = one[0] + other[0] + len(first) + len(second) - len(marks)
    while len(marks) > _REMEMBERED:
        halved += 1
        marks = _halved(marks, halved)
    return repeats, one[1] + other[1], marks, halved


def _halved(marks: NDArray[np.uint64], times: int) -> NDArray[np.uint64]:
    """Select one mark in ``2**times`` by the leading bits of a product."""
    mixed = marks * np.uint64(0x9E3779B97F4A7C15)
    return marks[mixed < np.uint64(2 ** (64 - times))] if times else marks
