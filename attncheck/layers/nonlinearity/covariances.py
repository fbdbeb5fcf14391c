"""Validation of two variances and their covariance, and the correlation that they imply."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray


def check_covariances(var1: ArrayLike, var2: ArrayLike, cov: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return variances and covariance as arrays of one shape with |cov| ≤ √(var1·var2), or raise `InputError`.

    Examples
    --------
    >>> check_covariances(1.0, [1.0, 4.0], 1.0)
    (array([1., 1.]), array([1., 4.]), array([1., 1.]))
    """
    v1, v2, c = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (var1, var2, cov)))
    largest = np.sqrt(v1) * np.sqrt(v2)
    # Rounding may make the correlation larger than 1.
    return v1, v2, np.clip(c, -largest, largest)


def correlation(v1: FloatArray, v2: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the correlation (0 where a variance is 0) and √(v1·v2)."""
    scale = np.sqrt(v1) * np.sqrt(v2)
    rho = np.divide(c, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.clip(rho, -1.0, 1.0), scale
