"""Trend of a number over the draws of a call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_number, check_whole
from attncheck.evidence.family import DRAWS, QUANTILE, CondensedData, Family, Outcome, finite_array, normal_power
from attncheck.evidence.ranks import ranker
from attncheck.evidence.summaries import NormalScore, normal_score

# Fewest draws, minus one per call, for a p-value.
_FEWEST = 30


@dataclass(frozen=True)
class Trend(Family):
    """Permutation test for numbers that rise or fall from the first draw of a call to the last.

    For exchangeable draws, the product of normal scores and position has mean 0 and known variance; both add up
    over calls. The p-value is that of a correlation of normal numbers, whose tails are nearly the same. The effect
    is the correlation of score and position.

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

    def test(self, values: ArrayLike, counts: ArrayLike) -> Outcome:
        """Return the outcome for one number per draw, (draws,), and the draws of each call, (calls,)."""
        data = finite_array("values", values)
        return self._outcome(*self._sums(special.ndtri((scipy.stats.rankdata(data) - 0.5) / len(data)), counts))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to sums over calls of scores, from ranks among the first data."""
        ranks = ranker(finite_array("values", data[0]))

        def sums(values: ArrayLike, counts: ArrayLike) -> tuple[Any, ...]:
            return self._sums(special.ndtri(ranks(finite_array("values", values))), counts)

        return CondensedData(sums, self._outcome).add(*data)

    @staticmethod
    def _sums(scores: FloatArray, counts: ArrayLike) -> tuple[float, float, int, int]:
        """Return the sum of score times position, its variance, draws minus calls, and the number of calls."""
        sizes = np.asarray(counts, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        index = np.arange(len(scores)) - np.repeat(starts, sizes)
        # Positions run from -1 to 1, in calls of any length.
        place = (2.0 * index - np.repeat(sizes - 1, sizes)) / np.repeat(np.maximum(sizes - 1, 1), sizes)
        spread = scores - np.repeat(np.add.reduceat(scores, starts) / sizes, sizes)
        products, places, squares = (
            np.add.reduceat(part, starts) for part in (place * spread, place * place, spread * spread)
        )
        variance = float((places * squares / np.maximum(sizes - 1, 1)).sum())
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
        count = check_whole("size", size, 1, DRAWS)
        if count <= _FEWEST:
            return 0.0
        return normal_power(correlation * math.sqrt(count - 1), level)

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, -alternative
