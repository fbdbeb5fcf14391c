"""Interpolation between Chebyshev nodes of an interval."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray

# Intervals count as points if their length is below this multiple of the scale.
_SHORTEST = 1e-9


def node_count(length: float, scale: float, wanted: int) -> int:
    """Return the number of nodes for an interval: `wanted`, or 1 if its `length` is negligible against `scale`."""
    return 1 if length <= _SHORTEST * scale else wanted


def nodes(between: tuple[float, float], count: int) -> FloatArray:
    """Return Chebyshev nodes of an interval."""
    low, high = between
    if count == 1:
        return np.array([0.5 * (low + high)])
    return np.asarray(0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(count) + 0.5) / count))


def between_nodes(between: tuple[float, float], count: int) -> FloatArray:
    """Return the ends of an interval, and the points midway in angle between its `count` Chebyshev nodes."""
    low, high = between
    if count == 1:
        return nodes(between, 1)
    return np.asarray(0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * np.arange(count + 1) / count))


def to_coefficients(count: int) -> FloatArray:
    """Return the matrix that maps values at Chebyshev nodes to Chebyshev coefficients."""
    angles = np.pi * (np.arange(count) + 0.5) / count
    matrix = 2.0 / count * np.cos(np.outer(np.arange(count), angles))
    matrix[0] *= 0.5
    return np.asarray(matrix)


def left_out(sizes: FloatArray) -> float:
    """Bound the truncation error of a Chebyshev series, from coefficient sizes (count,).

    The bound sums a geometric tail and its aliases. Coefficients are taken in pairs, since one may vanish by symmetry.
    Each later pair is assumed to be at least a quarter of the one before.
    """
    if len(sizes) == 1:
        return 0.0
    last, before = float(sizes[-2:].sum()), float(sizes[-4:-2].sum())
    ratio = min(max(0.25, last / before if before > 0 else 0.0), 0.9)
    return 2.0 * last * ratio / (1.0 - ratio)


def polynomials(between: tuple[float, float], at: float, count: int) -> FloatArray:
    """Return the Chebyshev polynomials of an interval at a point."""
    low, high = between
    place = 0.0 if count == 1 else np.clip((2 * at - low - high) / (high - low), -1.0, 1.0)
    return np.asarray(np.cos(np.arange(count) * np.arccos(place)))
