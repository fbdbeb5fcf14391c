"""p-values for means, power laws in the width, signs and normal laws."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy
from scipy import special

from attncheck._lib.arrays import FloatArray


def mean_p_value(
    estimate: float, error: float, expected: float, *, allowance: float = 0.0, df: float = math.inf
) -> float:
    """Return the two-sided p-value of a mean, given its estimate and standard error.

    Parameters
    ----------
    allowance : float
        Deviation from `expected` allowed by the null.
    df : float
        Degrees of freedom of the error.

    Examples
    --------
    >>> round(mean_p_value(1.96, 1.0, 0.0), 3), round(mean_p_value(1.96, 1.0, 0.0, df=7), 3)
    (0.05, 0.091)
    >>> mean_p_value(1.2, 0.1, 1.0, allowance=0.2)
    1.0
    """
    # In this order, NaN stays NaN.
    off = max(abs(estimate - expected) - allowance, 0.0)
    return _two_sided(off, error, df)


def order_between(values: Sequence[float], widths: Sequence[float]) -> float:
    """Return the order of the power law through two values, NaN unless they have the same sign.

    Examples
    --------
    >>> order_between((1.0, 0.25), (64, 256))
    -1.0
    """
    (narrow, wide), (first, second) = values, widths
    return math.log(wide / narrow) / math.log(second / first) if narrow * wide > 0.0 else math.nan


def order_p_value(
    values: Sequence[float],
    errors: Sequence[float],
    widths: Sequence[float],
    expected: float,
    *,
    allowance: float = 0.0,
    df: float = math.inf,
) -> float:
    """Return the two-sided p-value of a power law between two widths, for independent estimates.

    The statistic value₂ - value₁ (n₂/n₁)^order is linear in both values and thus, unlike logarithms, valid however
    large the errors are.

    Parameters
    ----------
    allowance : float
        Deviation from the `expected` order allowed by the null, for higher-order terms.
    df : float
        Degrees of freedom of each error.

    Examples
    --------
    >>> order_p_value((1.0, 0.26), (0.01, 0.003), (64, 256), -1.0, allowance=0.05)
    1.0
    >>> order_p_value((1.0, 0.26), (0.01, 0.003), (64, 256), -0.5) < 1e-9
    True
    """
    (narrow, wide), (narrow_error, wide_error) = values, errors

    def score(order: float) -> float:
        factor = (widths[1] / widths[0]) ** order
        off, error = wide - narrow * factor, math.hypot(wide_error, narrow_error * factor)
        return off / error if error else math.copysign(math.inf, off) if off else 0.0

    scores = [score(order) for order in (expected - allowance, expected + allowance)]
    off = 0.0 if min(scores) <= 0.0 <= max(scores) else min(map(abs, scores))
    return _two_sided(off, 1.0, df)


def sign_p_value(values: FloatArray) -> float:
    """Return the sign-test p-value of an array of any shape, ignoring zeros; exact for independent values.

    Examples
    --------
    >>> sign_p_value(np.array([1.0, -2.0, 0.0])), sign_p_value(np.ones(11))
    (1.0, 0.0009765625)
    """
    _check_finite(values)
    positive, negative = int((values > 0).sum()), int((values < 0).sum())
    return float(scipy.stats.binomtest(positive, max(1, positive + negative)).pvalue)


def normal_p_value(values: FloatArray, variance: FloatArray) -> float:
    """Return the exact p-value of the null that values are independent N(0, variance), ignoring those of variance 0.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> normal_p_value(2.0 * rng.standard_normal(1000), np.full(1000, 1.0)) < 1e-9
    True
    """
    _check_finite(values, variance)
    there = variance > 0
    return float(scipy.stats.kstest(values[there] / np.sqrt(variance[there]), "norm").pvalue) if there.any() else 1.0


def _check_finite(*arrays: FloatArray) -> None:
    """Comparisons with NaN are false: such values would be ignored."""
    assert all(np.isfinite(array).all() for array in arrays), "values are not finite"


def _two_sided(off: float, error: float, df: float) -> float:
    if not off:
        return 1.0
    score = off / error if error else math.inf
    return float(2.0 * (special.ndtr(-score) if math.isinf(df) else special.stdtr(df, -score)))
