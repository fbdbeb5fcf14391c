"""Share of parts that grow faster than predicted, for sizes that mix several powers of the width n.

After a step, decaying noise and constant parts add up, so no single exponent fits. The mean square is fitted by a sum
of powers of n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.scaling.exponents import Estimates, errors_of, means

#: Increment from the largest predicted order to the next.
NEXT = 0.5


def shares(logs: FloatArray | Sequence[FloatArray], widths: Sequence[int], orders: Sequence[float]) -> Estimates:
    """Return the share of the next order in mean squares at the largest width, from log sizes, (seeds, taps) per width.

    Mean squares are fitted by parts whose sizes grow as n^b, for b in `orders` and for the next order, which is the
    largest of these plus 1/2.

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
    centres = means(logs)
    n = np.asarray(widths, dtype=float)
    widest = int(np.argmax(n))
    # Terms are divided by observations, (taps, widths, orders), so that all have the same relative error.
    terms = (n / n[widest])[:, None] ** (2.0 * powers)
    columns = terms / np.exp(2.0 * (centres - centres[widest])).T[:, :, None]
    inverse = np.linalg.pinv(columns)
    amounts = inverse.sum(axis=2)
    total = amounts.sum(axis=1)
    values = amounts[:, -1] / total
    # Derivative of the share with respect to each relative error.
    gradient = (inverse[:, -1] - values[:, None] * inverse.sum(axis=1)) / total[:, None]
    return Estimates(values, *errors_of(logs, 2.0 * gradient.T))
