"""Weighted least squares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attncheck._lib.arrays import FloatArray


class LeastSquares(NamedTuple):
    """Coefficients, (m,), their standard errors, (m,), and the weighted sum of squared residuals."""

    coefficients: FloatArray
    errors: FloatArray
    squares: float


def least_squares(columns: FloatArray, values: FloatArray, errors: FloatArray) -> LeastSquares:
    """Fit `values` by a linear combination of `columns`; `errors` are the standard errors of the values.

    Parameters
    ----------
    columns : ndarray, shape (k, m)
    values, errors : ndarray, shape (k,)
    """
    weighted, target = columns / errors[:, None], values / errors
    # Powers of the width differ by orders of magnitude.
    scale = np.linalg.norm(weighted, axis=0)
    inverse = np.linalg.pinv(weighted / scale) / scale[:, None]
    coefficients = inverse @ target
    residuals = target - weighted @ coefficients
    return LeastSquares(coefficients, np.sqrt((inverse**2).sum(axis=1)), float(residuals @ residuals))
