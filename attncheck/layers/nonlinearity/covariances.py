"""Validation of two variances and their covariance, and the correlation that they imply."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse


def check_covariances(var1: ArrayLike, var2: ArrayLike, cov: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return variances and covariance as arrays of one shape with |cov| ≤ √(var1·var2), or raise `InputError`.

    Examples
    --------
    >>> check_covariances(1.0, [1.0, 4.0], 1.0)
    (array([1., 1.]), array([1., 4.]), array([1., 1.]))
    """
    arguments = {"var1": var1, "var2": var2, "cov": cov}
    arrays = {}
    for field, value in arguments.items():
        try:
            arrays[field] = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            refuse(field, value, "must be numbers", "pass a number or an array of them")
        if not np.all(np.isfinite(arrays[field])):
            refuse(field, value, "must be finite", "remove NaN and infinite entries")
        if field != "cov" and np.any(arrays[field] < 0):
            refuse(field, value, "must not be negative", "pass a variance")
    try:
        v1, v2, c = np.broadcast_arrays(arrays["var1"], arrays["var2"], arrays["cov"])
    except ValueError:
        refuse("cov", cov, "does not broadcast against the variances", "pass arrays of matching shapes")
    largest = np.sqrt(v1) * np.sqrt(v2)
    if np.any(np.abs(c) > largest * (1 + 1e-9)):
        refuse("cov", cov, "is larger than √(var1·var2)", "pass a covariance that can exist")
    # Rounding may make the correlation larger than 1.
    return v1, v2, np.clip(c, -largest, largest)


def correlation(v1: FloatArray, v2: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the correlation (0 where a variance is 0) and √(v1·v2)."""
    scale = np.sqrt(v1) * np.sqrt(v2)
    rho = np.divide(c, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.clip(rho, -1.0, 1.0), scale
