"""Confidence bands for distribution functions: at every point an exact interval, the same tail on each side.

The level of a point is a 99% band's divided by the number of points, so that the whole band holds with at least 99%
chance. No verdict depends on them.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.evidence.family import CONFIDENCE

_TAIL = 2.0 ** -np.arange(21, 5, -1)
#: Evaluation points: 1/32 apart in the middle, and halving down to 2⁻²¹ in both tails.
QUANTILES: FloatArray = np.concatenate([_TAIL, np.arange(1, 32) / 32, 1.0 - _TAIL[::-1]])


@functools.lru_cache(maxsize=256)
def uniform_band(count: int, allowance: float = 0.0) -> tuple[IntArray, IntArray]:
    """Return the lowest and highest count inside the band at each of `QUANTILES`, for uniform values.

    The level at each point holds for all laws up to Kolmogorov distance `allowance` from uniform.

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
    """Return the lowest and highest number of the first sample's values among the `pooled` smallest of both samples.

    Examples
    --------
    >>> low, high = two_sample_band(500, 1500, (10, 1000))
    >>> low.tolist(), high.tolist()
    ([0, 223], [7, 277])
    """
    law, tail = scipy.stats.hypergeom(ours + theirs, ours, np.array(pooled)), _tail(len(pooled))
    return np.asarray(law.ppf(tail), dtype=np.int64), np.asarray(law.isf(tail), dtype=np.int64)


def _tail(points: int) -> float:
    """Return the chance beyond each side of the band at one of several points."""
    return 0.5 * (1.0 - CONFIDENCE) / points
