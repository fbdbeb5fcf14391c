"""Rate of a stack's approach to its conjectured limit: the order in the width after every layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_wholes, refuse
from attncheck._lib.least_squares import least_squares
from attncheck.layers.stack import AttentionStack
from attncheck.paper.stacks.distance import StackDistance, check_drawn, check_stack, distances


@dataclasses.dataclass(frozen=True)
class StackRate:
    """Rate at which a gap between finite width and the conjectured limit decreases.

    The gap is a Kolmogorov distance of outputs, or the difference of mean correlations of positions.

    Attributes
    ----------
    depth : int
        Layer, from 1.
    order, order_error : float
        Order in the fit log ``|gap|`` = a + order · log n + e/n, and its standard error; NaN if gaps differ in sign.
    constant, constant_error, curvature : float
        c, its standard error, and d in the fit gap = c/n + d/n².
    p_value : float
        p-value of the fit c/n + d/n².
    distances : tuple of StackDistance
        Kolmogorov distances that were fitted.
    """

    depth: int
    order: float
    order_error: float
    constant: float
    constant_error: float
    curvature: float
    p_value: float
    distances: tuple[StackDistance, ...] = ()


def rates(
    stack: AttentionStack, widths: Sequence[int], size: int, seed: int = 0, position: int = 0
) -> tuple[StackRate, ...]:
    """Return the rate after every layer, from independent draws at several widths.

    Parameters
    ----------
    stack : AttentionStack
        Of any width.
    widths : sequence of int
        At least four different widths.
    size : int
        Draws at each width.
    seed : int
    position : int

    Returns
    -------
    tuple of StackRate, length depth

    Raises
    ------
    InputError
        If an argument is invalid, or one draw takes too much memory.

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> stack = AttentionStack(layer=AttentionLayer(width=16), depth=2)
    >>> for rate in rates(stack, (32, 64, 128, 256), size=1000):
    ...     print(rate.depth, abs(rate.order + 1) < 5 * rate.order_error)
    1 True
    2 True
    """
    check_stack(stack)
    distinct = check_widths(widths)
    check_drawn("widths", stack.at_width(distinct[-1]))
    from attncheck._lib.progress import counted_off

    found = [distances(stack.at_width(n), size, seed, position) for n in counted_off(distinct, "widths")]
    return tuple(_rate(each) for each in zip(*found, strict=True))


def check_widths(widths: Sequence[int]) -> list[int]:
    """Return at least four different widths in ascending order, or raise `InputError`."""
    remedy = "pass widths, e.g. (32, 64, 128, 256)"
    distinct = check_wholes("widths", widths, 1, remedy)
    if len(distinct) < 4:
        refuse("widths", distinct, "are fewer than four different widths", remedy)
    return distinct


def _rate(found: tuple[StackDistance, ...]) -> StackRate:
    """Return the rate of one layer's distances."""
    values, errors = (np.array([getattr(each, name) for each in found]) for name in ("ks", "ks_error"))
    if not np.all(values > 0):
        refuse("ks", values.tolist(), "must be positive to have an order", "draw more, or use smaller widths")
    rate = fit(found[0].depth, [each.width for each in found], values, errors)
    return dataclasses.replace(rate, distances=found)


def fit(depth: int, widths: Sequence[int], values: FloatArray, errors: FloatArray) -> StackRate:
    """Fit both forms of `StackRate` to gaps at several widths."""
    n = np.array(widths, dtype=np.float64)
    order, order_error = np.nan, np.nan
    if np.all(values * values[0] > 0):
        columns = np.stack([np.ones_like(n), np.log(n), 1 / n], axis=1)
        (_, order, _), (_, order_error, _), _ = least_squares(columns, np.log(np.abs(values)), errors / np.abs(values))
    powers = np.stack([1 / n, n**-2.0], axis=1)
    (constant, curvature), (constant_error, _), squares = least_squares(powers, values, errors)
    p_value = float(scipy.stats.chi2.sf(squares, len(n) - 2))
    return StackRate(
        depth=depth,
        order=float(order),
        order_error=float(order_error),
        constant=float(constant),
        constant_error=float(constant_error),
        curvature=float(curvature),
        p_value=p_value,
    )
