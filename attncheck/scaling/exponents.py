"""Exponents b of sizes that grow with width n as n^b, corrected for the next order.

Log sizes are fitted by a + b log n + c/n. Seeds are independent and each width has its own variance; intervals use
Student's t with Welch–Satterthwaite degrees of freedom.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.evidence.family import smallest_integer

#: Terms of the fit, hence the minimum number of widths.
TERMS = 3
# Smaller standard deviations of log sizes are rounding error.
_LEAST_SPREAD = 1e-9
# Maximum number of seeds suggested.
_MOST_SEEDS = 100_000
# Probability that the suggested number of seeds suffices for a verdict on one exponent, if the estimates are right.
_SURELY = 0.99


@dataclasses.dataclass(frozen=True)
class Estimates:
    """Estimates for all taps, their standard errors and degrees of freedom, (taps,) each."""

    values: FloatArray
    errors: FloatArray
    freedom: FloatArray

    def half_widths(self, level: float) -> FloatArray:
        """Return half-widths of intervals with error probability `level` each, (taps,)."""
        return quantile(level, self.freedom) * self.errors

    def p_values(self, low: FloatArray | float = -np.inf, high: FloatArray | float = np.inf) -> FloatArray:
        """Return two-sided p-values, (taps,), of the hypothesis that true values lie between `low` and `high`.

        A p-value is below a level exactly if the interval of that level lies outside [low, high].
        """
        beyond = np.maximum(np.maximum(low - self.values, self.values - high), 0.0)
        return np.asarray(2.0 * special.stdtr(self.freedom, -beyond / self.errors))


def exponents(logs: FloatArray | Sequence[FloatArray], widths: Sequence[int]) -> Estimates:
    """Return the exponents with which sizes grow with the width, from independent log sizes, (seeds, taps) per width.

    Raises
    ------
    InputError
        If there are fewer than three widths, or equal ones.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> widths = np.array([64, 128, 256, 512, 1024])
    >>> sizes = np.sqrt(rng.chisquare(64, (5, 50, 1))) * widths[:, None, None] ** -0.5
    >>> result = exponents(np.log(sizes), widths)
    >>> bool(abs(result.values[0] + 0.5) < result.half_widths(1e-3)[0] < 0.1)
    True
    """
    weights = slope_weights(widths)[:, None]
    return Estimates(np.sum(weights * means(logs), axis=0), *errors_of(logs, weights))


def means(logs: FloatArray | Sequence[FloatArray]) -> FloatArray:
    """Return mean log sizes, (widths, taps)."""
    return np.stack([array.mean(axis=0) for array in logs])


def errors_of(logs: FloatArray | Sequence[FloatArray], weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return standard errors, (taps,), of weighted sums of mean log sizes, and their degrees of freedom.

    `weights` has shape (widths, taps) or (widths, 1).
    """
    seeds = np.array([[len(array)] for array in logs])
    parts = weights**2 * _variances(logs) / seeds
    total = parts.sum(axis=0)
    return np.sqrt(total), total**2 / (parts**2 / (seeds - 1)).sum(axis=0)


def _variances(logs: FloatArray | Sequence[FloatArray]) -> FloatArray:
    """Return variances of log sizes over seeds, (widths, taps)."""
    return np.maximum([array.var(axis=0, ddof=1) for array in logs], _LEAST_SPREAD**2)


def slope_weights(widths: Sequence[int]) -> FloatArray:
    """Return regression weights, (widths,); the exponent is their dot product with the mean log sizes."""
    n = np.asarray(widths, dtype=float)
    if len(np.unique(n)) < max(TERMS, len(n)):
        refuse("widths", list(widths), "must be at least three, all different", "pass e.g. (64, 128, 256, 512, 1024)")
    columns = np.stack([np.ones_like(n), np.log(n), n.min() / n], axis=1)
    return np.asarray(np.linalg.pinv(columns)[1])


def quantile(level: float, freedom: FloatArray) -> FloatArray:
    """Return the half-width of an interval, in standard errors.

    `level` is the error probability of the interval, and `freedom` has the degrees of freedom of the standard errors.
    """
    return np.asarray(-special.stdtrit(freedom, 0.5 * level))


def seeds_needed(margin: float, error: float, freedom: float, seeds: int, level: float) -> int | None:
    """Return the number of seeds with which an interval suffices for a verdict with 99% probability.

    `margin` is the distance of the exponent from the nearer end of the allowed range. `error` and `freedom` are the
    standard error and the degrees of freedom with `seeds` seeds. Numbers of seeds at other widths are assumed to grow
    in proportion. The result is None if more than 100,000 seeds would be needed.

    Examples
    --------
    >>> seeds_needed(0.1, 0.05, 20.0, 8, 1.4e-3)
    63
    """

    def decides(number: int) -> bool:
        growth = number / seeds
        critical = quantile(level, np.maximum(freedom * growth, 1.0)) + special.ndtri(_SURELY)
        return bool(critical * error <= margin * math.sqrt(growth))

    return smallest_integer(decides, _MOST_SEEDS) if margin > 0.0 else None
