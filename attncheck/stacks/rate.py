"""How fast a stack approaches its conjectured limit: the order in the width after every layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from attncheck.errors import check_wholes, refuse
from attncheck.stacks.distance import Distance, check_stack, distances
from attncheck.stacks.stack import AttentionStack

FloatArray = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Rate:
    """How Kolmogorov's distance from the conjectured limit falls with the width.

    Attributes
    ----------
    depth : int
        The layer after which it is measured, from 1.
    distances : tuple of Distance
        At all widths.
    order, order_error : float
        Of log D = a + order · log n + e/n, with its standard error.
    constant, constant_error : float
        c of D = c/n + d/n².
    curvature : float
        d.
    p_value : float
        Of the squared deviations from c/n + d/n²: small where that is not how it falls.
    """

    depth: int
    distances: tuple[Distance, ...]
    order: float
    order_error: float
    constant: float
    constant_error: float
    curvature: float
    p_value: float


def rates(
    stack: AttentionStack, widths: Sequence[int], size: int, seed: int = 0, position: int = 0
) -> tuple[Rate, ...]:
    """Return the rate after every layer, from independent draws at several widths.

    Parameters
    ----------
    stack : AttentionStack
        Its own width plays no part.
    widths : sequence of int
        At least four different ones.
    size : int
        Draws at each.
    seed : int
    position : int

    Returns
    -------
    tuple of Rate, length depth

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> from attncheck.attention import AttentionLayer
    >>> stack = AttentionStack(layer=AttentionLayer(width=16), depth=2)
    >>> for rate in rates(stack, (32, 64, 128, 256), size=1000):
    ...     print(rate.depth, abs(rate.order + 1) < 5 * rate.order_error)
    1 True
    2 True
    """
    remedy = "pass numbers of neurons, e.g. (32, 64, 128, 256)"
    check_stack(stack)
    distinct = check_wholes("widths", widths, 1, remedy)
    if len(distinct) < 4:
        refuse("widths", distinct, "are fewer than four different ones", remedy)
    from attncheck.commands.progress import counted_off

    found = [distances(stack.at_width(n), size, seed, position) for n in counted_off(distinct, "widths")]
    return tuple(fit(each) for each in zip(*found, strict=True))


def fit(found: Sequence[Distance]) -> Rate:
    """Fit both forms to the distances of one depth at several widths, weighted by their errors."""
    n = np.array([each.width for each in found], dtype=np.float64)
    values, errors = (np.array([getattr(each, name) for each in found]) for name in ("ks", "ks_error"))
    if not np.all(values > 0):
        refuse("ks", values.tolist(), "must be positive to have an order", "draw more, or use smaller widths")
    (_, order, _), spread, _ = _least_squares(
        np.stack([np.ones_like(n), np.log(n), 1 / n]), np.log(values), errors / values
    )
    (constant, curvature), other, squares = _least_squares(np.stack([1 / n, n**-2.0]), values, errors)
    return Rate(
        depth=found[0].depth,
        distances=tuple(found),
        order=float(order),
        order_error=float(spread[1]),
        constant=float(constant),
        constant_error=float(other[0]),
        curvature=float(curvature),
        p_value=float(stats.chi2.sf(squares, len(n) - 2)),
    )


def _least_squares(design: FloatArray, values: FloatArray, errors: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return coefficients of the rows of `design`, their standard errors, and the sum of squared weighted residuals."""
    rows = (design / errors).T
    scale = np.linalg.norm(rows, axis=0)
    inverse = np.linalg.pinv(rows / scale) / scale[:, None]
    coefficients = inverse @ (values / errors)
    residuals = values / errors - rows @ coefficients
    return coefficients, np.sqrt((inverse**2).sum(axis=1)), float(residuals @ residuals)
