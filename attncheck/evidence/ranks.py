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

from attncheck.evidence.summaries import Score

FloatArray = NDArray[np.float64]

# Joint ranks are told apart by this many bins: normal scores lose less than a hundredth of their power.
_BINS = 256
# Chances at which a normal law has its standard deviation.
_ONE_SIGMA = float(special.ndtr(1.0))
# Logarithms that spread by less than this count as if they spread so much: no sample outweighs all others.
_LEAST_SPREAD = 0.02
# The smallest uniform value.
_LEAST = 1e-300


def shift_score(values: FloatArray, allowance: float = 0.0) -> Score:
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
    root = math.sqrt(values.size)
    if allowance == 0.0:
        # From the nearer end, where digits are.
        near = np.clip(np.minimum(values, 1.0 - values), _LEAST, 0.5)
        scores = np.copysign(special.ndtri(near), values - 0.5)
        return Score(float(scores.sum()) / root, values.size, "shift")
    scores = math.sqrt(12.0) * (values - 0.5)
    return Score(float(scores.sum()) / root, values.size, "shift", math.sqrt(12.0) * allowance * root)


def rank_score(
    ours: FloatArray, theirs: FloatArray, rounding: Callable[[FloatArray], FloatArray], logarithms: bool
) -> Score:
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
    scores = special.ndtri((np.cumsum(both) - 0.5 * both) / total)
    scores = np.where(both > 0, scores, 0.0)
    mean = float(both @ scores) / total
    variance = float(both @ (scores - mean) ** 2) * count * others / (total * (total - 1))
    unit = "size" if logarithms else "shift"
    if variance <= 0.0:
        return Score(0.0, 0.0, unit)
    z = (float(mine @ scores) - count * mean) / math.sqrt(variance)
    information = count * others / total
    if logarithms:
        low, high = joint[int((1.0 - _ONE_SIGMA) * total)], joint[int(_ONE_SIGMA * total)]
        information /= max(0.5 * float(high - low), _LEAST_SPREAD) ** 2
    return Score(z, information, unit)
