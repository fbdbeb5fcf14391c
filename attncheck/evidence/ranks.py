"""Scores of samples that are compared as wholes: is one shifted against the other, or against the uniform law?

A distance between distribution functions is never negative, so that distances of several samples add up badly. These
scores have a sign, and under the null a standard normal law: exactly for values of a uniform law, and by permutations
for two samples, whatever their common law is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck.evidence.summaries import NormalScore

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Cells that stand for values of an unknown law: each holds a share of it that no look at 10⁷ draws could tell from 0.
_CELLS = 2**14
# Joint ranks are told apart by this many bins: normal scores lose less than a hundredth of their power.
_BINS = 256
# Chances at which a normal law has its standard deviation.
_ONE_SIGMA = float(special.ndtr(1.0))
# Logarithms that spread by less than this count as if they spread so much: no sample outweighs all others.
_LEAST_SPREAD = 0.02
# The smallest uniform value.
_LEAST = 1e-300


def shift_score(values: FloatArray, allowance: float = 0.0) -> NormalScore:
    """Return the score of a shift of probability integral transforms; its effect is in standard deviations.

    Without an allowance it is the sum of the values' normal scores, exactly normal under the null. With one it is
    their mean, which a law at Kolmogorov distance a from the uniform one moves by at most a.

    Parameters
    ----------
    values : ndarray, shape (count,)
        In [0, 1].
    allowance : float
        Kolmogorov distance from uniform that the null allows.

    Examples
    --------
    >>> score = shift_score((np.arange(400) + 0.5) / 400)
    >>> abs(score.z) < 1e-9, score.information
    (True, 400.0)
    """
    return score_of_sum(float(shifts(values, allowance).sum()), values.size, allowance)


def shifts(values: FloatArray, allowance: float) -> FloatArray:
    """Return what each value adds to the score: of mean 0 and variance 1 under the null."""
    if allowance > 0.0:
        return math.sqrt(12.0) * (values - 0.5)
    # From the nearer end, where digits are.
    near = np.clip(np.minimum(values, 1.0 - values), _LEAST, 0.5)
    return np.asarray(np.copysign(special.ndtri(near), values - 0.5))


def score_of_sum(total: float, count: int, allowance: float) -> NormalScore:
    """Return the score of a sum of `shifts`."""
    root = math.sqrt(count)
    return NormalScore(total / root, count, "shift", math.sqrt(12.0) * allowance * root)


def rank_score(
    ours: FloatArray, theirs: FloatArray, rounding: Callable[[FloatArray], FloatArray], logarithms: bool
) -> NormalScore:
    """Return the score of a shift of one sample against another: normal scores of joint ranks (van der Waerden).

    Given all values of both samples, every way to share them out is as likely under the null: the mean and variance
    of the sum are known, whatever the common law is. The weight of the sample depends on those values only.

    Parameters
    ----------
    ours, theirs : ndarray, shapes (count,), (others,)
        Sorted.
    rounding : callable
        How much larger a value may be and still count as the same.
    logarithms : bool
        Whether values are logarithms, whose shift has a unit of its own; else the effect is in standard deviations.
    """
    count, others = ours.size, theirs.size
    total = count + others
    joint = np.sort(np.concatenate([ours, theirs]), kind="stable")
    edges = joint[np.arange(1, _BINS) * total // _BINS]
    edges = np.append(edges + rounding(edges), np.inf)
    below = np.searchsorted(ours, edges, side="right")
    mine = np.diff(below, prepend=0)
    both = np.diff(below + np.searchsorted(theirs, edges, side="right"), prepend=0)
    low, high = joint[int((1.0 - _ONE_SIGMA) * total)], joint[int(_ONE_SIGMA * total)]
    return score_of_cells(mine, both, 0.5 * float(high - low) if logarithms else None)


def score_of_cells(mine: IntArray, both: IntArray, spread: float | None) -> NormalScore:
    """Return the score of a sample by how many of its values, and of both samples', lie in each cell.

    Values of one cell share its middle rank. Whatever the cells are, as long as they do not know which value is of
    which sample, mean and variance are those over all ways to share out the values.

    Parameters
    ----------
    mine, both : ndarray, shape (cells,)
        By order of the cells.
    spread : float or None
        Standard deviation of values that are logarithms, or about so.
    """
    count, total = int(mine.sum()), int(both.sum())
    others = total - count
    scores = special.ndtri((np.cumsum(both) - 0.5 * both) / total)
    scores = np.where(both > 0, scores, 0.0)
    mean = float(both @ scores) / total
    variance = float(both @ (scores - mean) ** 2) * count * others / (total * (total - 1))
    unit = "shift" if spread is None else "size"
    if variance <= 0.0:
        return NormalScore(0.0, 0.0, unit)
    z = (float(mine @ scores) - count * mean) / math.sqrt(variance)
    information = count * others / total
    if spread is not None:
        information /= max(spread, _LEAST_SPREAD) ** 2
    return NormalScore(z, information, unit)


def spread_of_cells(points: FloatArray, ranks: FloatArray) -> float:
    """Return half the distance between the points at which a law has the ranks that a normal one has at ±1.

    Parameters
    ----------
    points, ranks : ndarray, shape (points,)
        Sorted, and the share of the law at or below each.
    """
    low, high = np.searchsorted(ranks, (1.0 - _ONE_SIGMA, _ONE_SIGMA)).clip(max=len(points) - 1)
    return 0.5 * float(points[high] - points[low])


def cells_of(values: FloatArray) -> FloatArray:
    """Return points, sorted, that divide values and others of their law into many cells of one size, but for ties."""
    return np.sort(values)[np.linspace(0, len(values) - 1, min(_CELLS, len(values))).astype(np.int64)]


def ranker(values: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Return what ranks numbers, in (0, 1), among the cells of values: the same for equal numbers, and in their order.

    Examples
    --------
    >>> ranker(np.array([1.0, 2.0]))(np.array([0.0, 1.0, 3.0]))
    array([0.16666667, 0.33333333, 0.83333333])
    """
    points = cells_of(values)

    def ranks(numbers: FloatArray) -> FloatArray:
        below, upto = (np.searchsorted(points, numbers, side=side) for side in ("left", "right"))
        return np.asarray((below + upto + 1.0) / (2.0 * len(points) + 2.0))

    return ranks
