"""Scores for a shift between two samples, or from the uniform law.

Kolmogorov distances are never negative and pool badly. These scores are signed and standard normal under the null:
exactly for uniform values, by permutation for two samples of any law.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.evidence.summaries import NormalScore

# Number of cells for ranks of an unknown law. A change of the share of one cell is then undetectable in 10⁷ draws.
_CELLS = 2**14
# Number of bins of the ranks of a pooled sample. Tests on binned ranks lose less than 1% of their power.
_BINS = 256
# Probability that a normal number is at most one standard deviation above its mean.
_ONE_SIGMA = float(special.ndtr(1.0))
# Lower bound of the spread of logarithms, so that no sample outweighs all others.
_LEAST_SPREAD = 0.02
# Smallest uniform value.
_LEAST = 1e-300


def shift_score(values: FloatArray, allowance: float = 0.0) -> NormalScore:
    """Return the score of a shift of probability integral transforms, (count,), in standard deviations.

    Without an allowance, the score is computed from normal scores of the values. With an allowance a, it is computed
    from their mean, because for laws at Kolmogorov distance a from uniform the expected mean shifts by at most a.

    Examples
    --------
    >>> score = shift_score((np.arange(400) + 0.5) / 400)
    >>> abs(score.z) < 1e-9, score.information
    (True, 400.0)
    """
    return score_of_sum(float(shifts(values, allowance).sum()), values.size, allowance)


def shifts(values: FloatArray, allowance: float) -> FloatArray:
    """Return the contribution of each value to the shift score, with mean 0 and variance 1 under the null."""
    if allowance > 0.0:
        return math.sqrt(12.0) * (values - 0.5)
    # Compute quantiles from the nearer end of [0, 1], for precision.
    near = np.clip(np.minimum(values, 1.0 - values), _LEAST, 0.5)
    return np.asarray(np.copysign(special.ndtri(near), values - 0.5))


def score_of_sum(total: float, count: int, allowance: float) -> NormalScore:
    """Return the shift score of `count` values from `total`, the sum of their `shifts`."""
    root = math.sqrt(count)
    return NormalScore(total / root, count, "shift", math.sqrt(12.0) * allowance * root)


def rank_score(
    ours: FloatArray, theirs: FloatArray, rounding: Callable[[FloatArray], FloatArray], logarithms: bool
) -> NormalScore:
    """Return the van der Waerden score of a shift between two sorted samples.

    Its mean and variance are those over all assignments of the pooled values to the samples; the information depends on
    the pooled values only.

    Parameters
    ----------
    rounding : callable
        Maps a value to a tolerance: a value that is larger by at most the tolerance counts as equal.
    logarithms : bool
        Whether values are logarithms: the effect is then their shift, otherwise the shift in standard deviations.
    """
    count, rest = ours.size, theirs.size
    total = count + rest
    joint = np.sort(np.concatenate([ours, theirs]), kind="stable")
    edges = joint[np.arange(1, _BINS) * total // _BINS]
    edges = np.append(edges + rounding(edges), np.inf)
    below = np.searchsorted(ours, edges, side="right")
    mine = np.diff(below, prepend=0)
    both = np.diff(below + np.searchsorted(theirs, edges, side="right"), prepend=0)
    low, high = joint[int((1.0 - _ONE_SIGMA) * total)], joint[int(_ONE_SIGMA * total)]
    return score_of_cells(mine, both, 0.5 * float(high - low) if logarithms else None)


def score_of_cells(mine: IntArray, both: IntArray, spread: float | None) -> NormalScore:
    """Return the rank score of a sample from its counts in ordered cells.

    `mine` holds the counts of this sample, and `both` those of the two compared samples together. Values in a cell
    share its middle rank; cells must not depend on which sample a value belongs to. `spread` is the standard deviation
    of the values if they are logarithms, and None otherwise.
    """
    count, total = int(mine.sum()), int(both.sum())
    rest = total - count
    scores = special.ndtri((np.cumsum(both) - 0.5 * both) / total)
    scores = np.where(both > 0, scores, 0.0)
    mean = float(both @ scores) / total
    variance = float(both @ (scores - mean) ** 2) * count * rest / (total * (total - 1))
    unit = "shift" if spread is None else "size"
    if variance <= 0.0:
        return NormalScore(0.0, 0.0, unit)
    z = (float(mine @ scores) - count * mean) / math.sqrt(variance)
    information = count * rest / total
    if spread is not None:
        information /= max(spread, _LEAST_SPREAD) ** 2
    return NormalScore(z, information, unit)


def spread_of_cells(points: FloatArray, ranks: FloatArray) -> float:
    """Return a robust standard deviation: half the distance between two points.

    `points` are sorted, and `ranks` are their ranks from 0 to 1. The two points have the ranks of −1 and 1 under the
    standard normal law.
    """
    low, high = np.searchsorted(ranks, (1.0 - _ONE_SIGMA, _ONE_SIGMA)).clip(max=len(points) - 1)
    return 0.5 * float(points[high] - points[low])


def cells_of(values: FloatArray) -> FloatArray:
    """Return sorted points that divide the values into many equally frequent cells, except for ties."""
    return np.sort(values)[np.linspace(0, len(values) - 1, min(_CELLS, len(values))).astype(np.int64)]


def ranker(values: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Return a function that gives numbers their rank, from 0 to 1, among cells that contain equally many of `values`.

    Equal numbers have equal ranks.

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
