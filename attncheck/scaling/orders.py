"""Sizes in which several orders of the width are mixed: how much of them is of an order beyond all that are predicted.

What a step changes is a sum of parts, and each has an order of its own: noise that falls as n^{-1/2} beside what stays.
No single exponent is right then at any width. The mean square is a sum of powers of n with weights that are fitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck._lib.errors import refuse
from attncheck.scaling.exponents import errors_of, quantile

FloatArray = NDArray[np.float64]

#: The order beyond the largest that is predicted.
NEXT = 0.5


@dataclasses.dataclass(frozen=True)
class Shares:
    """Shares of the order beyond in mean squares at the widest width, for all taps together.

    Attributes
    ----------
    values, errors : ndarray, (taps,)
        The shares and their standard errors. A share may be negative: sizes then grow more slowly than all orders.
    freedom : ndarray, (taps,)
        Degrees of freedom of the errors.
    """

    values: FloatArray
    errors: FloatArray
    freedom: FloatArray

    def half_widths(self, level: float) -> FloatArray:
        """Return half of the widths of the intervals that miss a share with chance `level` each, (taps,)."""
        return quantile(level, self.freedom) * self.errors

    def p_values(self, most: float) -> FloatArray:
        """Return two-sided p-values of "the share is `most` or less", (taps,)."""
        beyond = np.maximum(self.values - most, 0.0)
        return np.asarray(2.0 * special.stdtr(self.freedom, -beyond / self.errors))


def shares(logs: FloatArray, widths: Sequence[int], orders: Sequence[float]) -> Shares:
    """Return how much of the mean squares at the widest width is of an order beyond all of `orders`.

    Parameters
    ----------
    logs : ndarray, (widths, seeds, taps)
        Logarithms of sizes; no seed is shared by two widths.
    widths : sequence of int
    orders : sequence of float
        Exponents b of parts that grow as n^b. One more is fitted: the largest of them plus 1/2.

    Raises
    ------
    InputError
        If there are fewer widths than orders, or too few seeds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> n = np.array([64, 128, 256, 512, 1024])
    >>> noise = np.exp(0.05 * rng.standard_normal((5, 20, 1)))
    >>> mixed = np.sqrt(1 + 100 / n)[:, None, None] * noise
    >>> bool(abs(shares(np.log(mixed), n, (-0.5, 0.0)).values[0]) < 0.1)
    True
    >>> growing = mixed * np.sqrt(n / 64)[:, None, None]
    >>> bool(shares(np.log(growing), n, (-0.5, 0.0)).values[0] > 0.8)
    True
    """
    powers = np.array(sorted({*orders, max(orders) + NEXT}))
    if len(powers) > len(widths):
        refuse("orders", list(orders), f"are too many for {len(widths)} widths", "pass more widths")
    means = logs.mean(axis=1)
    n = np.asarray(widths, dtype=float)
    widest = int(np.argmax(n))
    # Each term over what is observed, (taps, widths, orders), so that all have the same relative error.
    terms = (n / n[widest])[:, None] ** (2.0 * powers)
    columns = terms / np.exp(2.0 * (means - means[widest])).T[:, :, None]
    inverse = np.linalg.pinv(columns)
    amounts = inverse.sum(axis=2)
    whole = amounts.sum(axis=1)
    values = amounts[:, -1] / whole
    # What the share takes of each relative error.
    taken = (inverse[:, -1] - values[:, None] * inverse.sum(axis=1)) / whole[:, None]
    errors, freedom = errors_of(2.0 * logs, taken.T)
    return Shares(values, errors, freedom)
