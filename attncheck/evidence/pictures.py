"""Pictures of what a test saw: a named kind and a few dozen rounded numbers of built-in types.

Records carry them so that a report can draw what the draws looked like without the draws. No verdict and no
digest depends on a picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Points of a distribution function that a picture shows.
POINTS = 64
# Residuals beyond this many standard deviations share the outermost bins.
_WIDEST = 4.0
_BINS = 32
# Decimals of what lies between -1 and 1.
_DIGITS = 5


def cdf_of_uniform(values: FloatArray, band: float, allowance: float) -> dict[str, Any]:
    """Return the empirical distribution function of sorted values in [0, 1], less that of the uniform law.

    Parameters
    ----------
    values : ndarray
        Sorted.
    band : float
        Half width of the simultaneous 99% band.
    allowance : float
        Distance that the null itself may have.

    Examples
    --------
    >>> picture = cdf_of_uniform((np.arange(640) + 0.5) / 640, 0.06, 0.0)
    >>> picture["kind"], len(picture["difference"]), max(map(abs, picture["difference"]))
    ('cdf', 63, 0.0)
    """
    points = np.arange(1, POINTS) / POINTS
    difference = np.searchsorted(values, points, side="right") / values.size - points
    return cdf(difference, band, allowance, int(values.size))


def cdf_of_two(ours: FloatArray, theirs: FloatArray, band: float) -> dict[str, Any]:
    """Return the difference of two empirical distribution functions at quantiles of the pooled sample.

    Parameters
    ----------
    ours, theirs : ndarray
        Sorted.
    band : float
        Half width of the simultaneous 99% band of the difference.
    """
    points = np.quantile(np.concatenate([ours, theirs]), np.arange(1, POINTS) / POINTS)
    first = np.searchsorted(ours, points, side="right") / ours.size
    second = np.searchsorted(theirs, points, side="right") / theirs.size
    return cdf(first - second, band, 0.0, int(ours.size))


def histogram_of_residuals(residuals: FloatArray) -> dict[str, Any]:
    """Return the shares of whitened residuals in bins from -4 to 4; the outermost hold what lies beyond.

    Examples
    --------
    >>> histogram_of_residuals(np.zeros(10))["shares"][16]
    1.0
    """
    edges = np.linspace(-_WIDEST, _WIDEST, _BINS + 1)
    inside = np.clip(residuals, edges[0], edges[-1])
    shares = np.histogram(inside, edges)[0] / max(1, residuals.size)
    return {"kind": "residuals", "widest": _WIDEST, "shares": _decimals(shares), "count": int(residuals.size)}


def covariances(predicted: FloatArray, products: FloatArray) -> dict[str, Any]:
    """Return predicted and observed covariances with the standard errors of their differences.

    Parameters
    ----------
    predicted, products : ndarray, shape (draws, pairs)
        What each draw predicts, and what it shows.
    """
    size = max(1, len(products))
    errors = (products - predicted).std(axis=0) / size**0.5
    columns = {"predicted": predicted.mean(axis=0), "observed": products.mean(axis=0), "error": errors}
    return {"kind": "covariances", **{name: _significant(values) for name, values in columns.items()}, "count": size}


def rate(
    widths: FloatArray, distances: FloatArray, errors: FloatArray, slope: float, low: float, high: float
) -> dict[str, Any]:
    """Return a distance at several widths with its standard errors, and the slope of its logarithm.

    Examples
    --------
    >>> rate(np.array([8, 32]), np.array([0.5, 0.25]), np.array([0.01, 0.01]), -0.5, -0.6, -0.4)["slope"]
    -0.5
    """
    columns = {"widths": widths, "distances": distances, "errors": errors}
    numbers = {"slope": slope, "low": low, "high": high}
    rounded = {name: float(f"{value:.4g}") for name, value in numbers.items()}
    return {"kind": "rate", **{name: _significant(values) for name, values in columns.items()}, **rounded}


def cdf(difference: FloatArray, band: float, allowance: float, count: int) -> dict[str, Any]:
    """Return the difference of two distribution functions at `POINTS` - 1 points, with the band about it."""
    limits: Mapping[str, Any] = {"band": round(band, _DIGITS), "allowance": round(allowance, _DIGITS), "count": count}
    return {"kind": "cdf", "difference": _decimals(difference), **limits}


def _decimals(values: FloatArray) -> list[float]:
    """Return rounded values without negative zeros."""
    numbers: list[float] = (np.round(values, _DIGITS) + 0.0).tolist()
    return numbers


def _significant(values: FloatArray) -> list[float]:
    """Return values with four significant digits."""
    return [float(f"{value:.4g}") for value in values]
