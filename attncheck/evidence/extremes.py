"""Ties at the extremes of draws, a sign of clipping."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck._lib.errors import check_number, check_whole
from attncheck.evidence.families import Count
from attncheck.evidence.family import DRAWS, CondensedData, Family, Outcome, check_level, finite_array
from attncheck.evidence.summaries import Events

#: Bound on the chance that the largest number of a sample ties by rounding: the relative step of single precision, at
#: most 2^-23, times the hazard x f(x)/(1 - F(x)). For a normal law this is about x², 28 for the largest of 10⁶ numbers;
#: heavier tails have less.
TIE = 2.0**-23 * 32
# Number of calls assumed in planning: with fewer calls, ties are rarer.
_CALLS = 100


@dataclass(frozen=True)
class Extremes(Family):
    """Ties at the largest number of each call, and of all calls: none for a continuous law.

    The effect is the share of draws that tie. The null allows one tie by rounding per quarter of a million
    extremes; the Poisson p-value is very conservative.

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
    # Without a tie the p-value is 1.
    continuous = False
    _farthest = 1.0

    def test(self, sides: ArrayLike, counts: ArrayLike) -> Outcome:
        """Return the outcome for the largest number of each draw, (draws, sides), and the draws of each call, (calls,).

        Equal numbers must belong to different draws. A side whose largest number is 0 has no ties.
        """
        return self._outcome(*_reached(sides, counts))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to ties within calls, the largest number at each side, and how many calls reach it."""
        return CondensedData(_reached, self._outcome, _higher).add(*data)

    def _outcome(self, draws: int, calls: int, within: int, largest: FloatArray, reached: IntArray) -> Outcome:
        """Return the outcome for the numbers that `_reached` returns."""
        ties = within + int(np.maximum(reached - 1, 0).sum())
        outcome = Count(0.0).test(min(ties, draws), draws)
        rate = _rate(calls, len(largest))
        p_value = float(special.pdtrc(ties - 1, rate)) if ties else 1.0
        summary = Events(min(ties, draws), draws, min(1.0, rate / draws))
        return dataclasses.replace(outcome, p_value=p_value, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the power if each draw lies at one bound with chance `alternative`."""
        share = check_number("alternative", alternative, "pass a share of draws in [0, 1]", minimum=0.0, maximum=1.0)
        draws = check_whole("size", size, 1, DRAWS)
        rate = _rate(_CALLS, 2)
        fewest = next(ties for ties in range(1, 1000) if special.pdtrc(ties - 1, rate) < check_level(level))
        return float(scipy.stats.binom.sf(fewest, draws, share))


def _rate(calls: int, sides: int) -> float:
    """Return the expected number of ties by rounding."""
    return TIE * sides * (calls + 1)


def _reached(sides: ArrayLike, counts: ArrayLike) -> tuple[int, int, int, FloatArray, IntArray]:
    """Return draws, calls, ties within calls, the largest number at each side, and how many calls reach it.

    A tie is a further number equal to the nonzero largest of its call.
    """
    reach, sizes = finite_array("sides", sides), np.asarray(counts, dtype=np.int64)
    tops = np.maximum.reduceat(reach, np.concatenate([[0], np.cumsum(sizes)[:-1]]))
    within = (reach == np.repeat(tops, sizes, axis=0)) & (reach != 0.0)
    largest = tops.max(axis=0)
    reached = ((tops == largest) & (tops != 0.0)).sum(axis=0)
    return len(reach), len(sizes), int(within.sum() - (tops != 0.0).sum()), largest, reached


def _higher(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Merge the results of `_reached` for two sets of calls."""
    largest = np.maximum(one[3], other[3])
    reached = sum(np.where(each[3] == largest, each[4], 0) for each in (one, other))
    return *(first + second for first, second in zip(one[:3], other[:3], strict=True)), largest, reached
