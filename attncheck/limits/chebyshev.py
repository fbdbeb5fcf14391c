"""Interpolation between Chebyshev nodes of an interval."""

from __future__ import annotations

import numpy as np

from attncheck.limits.kernel import FloatArray


def node_count(between: tuple[float, float], wanted: int) -> int:
    """Return the number of nodes that is wanted of an interval, and one where it is a point."""
    low, high = between
    return 1 if high - low <= 1e-9 * max(1.0, abs(high)) else wanted


def nodes(between: tuple[float, float], count: int) -> FloatArray:
    """Return Chebyshev nodes of an interval."""
    low, high = between
    if count == 1:
        return np.array([0.5 * (low + high)])
    return np.asarray(0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(count) + 0.5) / count))


def to_coefficients(count: int) -> FloatArray:
    """Return the matrix that maps values at Chebyshev nodes to coefficients of Chebyshev polynomials."""
    angles = np.pi * (np.arange(count) + 0.5) / count
    matrix = 2.0 / count * np.cos(np.outer(np.arange(count), angles))
    matrix[0] *= 0.5
    return np.asarray(matrix)


def polynomials(between: tuple[float, float], at: float, count: int) -> FloatArray:
    """Return the values of the Chebyshev polynomials of an interval at a point."""
    low, high = between
    place = 0.0 if count == 1 else np.clip((2 * at - low - high) / (high - low), -1.0, 1.0)
    return np.asarray(np.cos(np.arange(count) * np.arccos(place)))
