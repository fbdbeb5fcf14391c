"""Confidence bands for distribution functions, with the same local level at every point, half of it on each side.

The local level is the largest at which the whole band holds with 99% chance. That chance is computed exactly for the
given sample size, by convolution: conditioned on their sum, counts between points are independent Poisson variables, or
binomial variables for the first of two samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.evidence.family import CONFIDENCE

_TAIL = 2.0 ** -np.arange(21, 5, -1)
#: Evaluation points: 1/32 apart in the middle, and halving down to 2⁻²¹ in both tails.
QUANTILES: FloatArray = np.concatenate([_TAIL, np.arange(1, 32) / 32, 1.0 - _TAIL[::-1]])
# Bisection steps for the logarithm of the local level, accurate to 4%.
_HALVINGS = 7


@functools.lru_cache(maxsize=256)
def uniform_band(count: int, allowance: float = 0.0) -> tuple[IntArray, IntArray]:
    """Return the lowest and highest count inside the band at each of `QUANTILES`, for uniform values.

    The level at each point holds for all laws up to Kolmogorov distance `allowance` from uniform.

    Examples
    --------
    >>> low, high = uniform_band(500)
    >>> float(QUANTILES[12]), int(low[12]), int(high[12])
    (0.001953125, 0, 6)
    >>> int(low[31]), int(high[31])
    (212, 288)
    """
    level, low, high = _uniform(count)
    if allowance == 0.0:
        return low, high
    low = _lowest(
        _table(_Law(scipy.stats.poisson, count * np.maximum(QUANTILES - allowance, 0.0), float(count), count)), level
    )
    return low, count - low[::-1]


@functools.lru_cache(maxsize=256)
def two_sample_band(ours: int, theirs: int, pooled: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """Return the lowest and highest number of the first sample's values among the `pooled` smallest of both samples.

    Examples
    --------
    >>> low, high = two_sample_band(500, 1500, (10, 1000))
    >>> low.tolist(), high.tolist()
    ([0, 224], [6, 276])
    """
    parts = functools.partial(scipy.stats.binom, p=ours / (ours + theirs))
    return _band(_Law(parts, np.array(pooled), ours + theirs, ours))[1:]


@dataclass(frozen=True)
class _Law:
    """Law of the counts up to each point, given the total; ``parts(sizes)`` is the law of counts between points."""

    parts: Callable[[Any], Any]
    sizes: NDArray[Any]
    total: float
    count: int


@functools.lru_cache(maxsize=256)
def _uniform(count: int) -> tuple[float, IntArray, IntArray]:
    return _band(_Law(scipy.stats.poisson, count * QUANTILES, float(count), count))


def _band(law: _Law) -> tuple[float, IntArray, IntArray]:
    """Return the largest local level, both sides together, at which the whole band holds, and that band."""
    count, tables = law.count, (_table(law), _table(replace(law, sizes=law.total - law.sizes)))

    def band(level: float) -> tuple[IntArray, IntArray]:
        low, rest = (_lowest(table, level) for table in tables)
        return np.append(low, count), np.append(count - rest, count)

    # The level lies between that of a union bound over all points and that of a single point.
    least, most = math.log((1.0 - CONFIDENCE) / len(law.sizes)), math.log(1.0 - CONFIDENCE)
    low, high = band(math.exp(least))
    fewest = np.maximum(0, low - np.append(0, high[:-1]))
    width = int(np.max(high - np.append(0, low[:-1]) - fewest)) + 1
    length = 1 << (2 * width).bit_length()
    steps = law.parts(np.diff(law.sizes, prepend=0, append=law.total)[:, None])
    spectra = np.fft.rfft(steps.pmf(fewest[:, None] + np.arange(width)), length)
    wanted = CONFIDENCE * float(law.parts(law.total).pmf(count))
    for _ in range(_HALVINGS):
        middle = 0.5 * (least + most)
        kept = _kept(spectra, fewest, length, *band(math.exp(middle))) >= wanted
        least, most = (middle, most) if kept else (least, middle)
    low, high = band(math.exp(least))
    return math.exp(least), low[:-1], high[:-1]


def _kept(spectra: NDArray[np.complex128], fewest: IntArray, length: int, low: IntArray, high: IntArray) -> float:
    """Return the chance that partial sums of steps stay in a band, given Fourier transforms of the steps' laws."""
    chances, start = np.ones(1), 0
    for spectrum, step, least, most in zip(spectra, fewest, low, high, strict=True):
        reached = np.fft.irfft(np.fft.rfft(chances, length) * spectrum, length)
        start += step
        chances, start = reached[least - start : most - start + 1], least
    return float(chances[0])


def _table(law: _Law) -> tuple[IntArray, FloatArray]:
    """Return, for each point, the first of a range of counts up to the mean, and the distribution function there."""
    share = law.sizes / law.total
    spread = np.sqrt(law.count * share * (1.0 - share))
    first = np.maximum(0, np.floor(law.count * share - 8.0 * spread - 12.0)).astype(np.int64)[:, None]
    numbers = first + np.arange(int(8.0 * spread.max()) + 15)
    below, beyond = law.parts(law.sizes[:, None]), law.parts(law.total - law.sizes[:, None])
    joint = below.pmf(numbers) * beyond.pmf(law.count - numbers) / law.parts(law.total).pmf(law.count)
    return first[:, 0], np.cumsum(joint, axis=1)


def _lowest(table: tuple[IntArray, FloatArray], level: float) -> IntArray:
    """Return the lowest count inside the band at each point: the quantile at half the level."""
    lowest: IntArray = table[0] + np.sum(table[1] < 0.5 * level, axis=1)
    return lowest
