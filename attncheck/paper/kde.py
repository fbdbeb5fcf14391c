"""The paper's KL estimator from Gaussian kernel densities (Scott's bandwidth, 500 points), for comparison only.

Densities are those of `scipy.stats.gaussian_kde`, computed from fine bins.
"""

from __future__ import annotations

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse

#: Grid points, and the constant added to densities.
POINTS, OFFSET = 500, 1e-12
# Number of bins per bandwidth, so that linear binning errs by less than 1/(8 · 1000²) of the kernel's height.
_BINS = 1000
# Bandwidths beyond which the kernel is negligible in float64.
_REACH = 9.0


def scott(samples: FloatArray) -> float:
    """Return Scott's bandwidth, N^{-1/5} times the standard deviation.

    Examples
    --------
    >>> round(scott(np.arange(32.0)), 6)
    4.690416
    """
    if samples.ndim != 1 or not np.isfinite(samples).all() or np.ptp(samples) == 0:
        refuse("samples", samples, "have no kernel density", "pass one axis of finite numbers that differ")
    return float(samples.std(ddof=1) * len(samples) ** -0.2)


def density(samples: FloatArray, grid: FloatArray) -> FloatArray:
    """Return the kernel density estimate, (m,), on an evenly spaced, ascending grid, (m,).

    Examples
    --------
    >>> density(np.array([-1.0, 1.0]), np.array([-1.0, 0.0, 1.0])).round(4)
    array([0.2053, 0.233 , 0.2053])
    """
    steps = np.diff(grid)
    if grid.ndim != 1 or len(grid) < 2 or steps.min() <= 0 or np.ptp(steps) > 1e-6 * steps.mean():
        refuse("grid", grid, "is not an evenly spaced, ascending axis", "pass e.g. numpy.linspace(-3, 3, 500)")
    width = scott(samples)
    step = (grid[-1] - grid[0]) / (len(grid) - 1)
    fine = int(np.ceil(_BINS * step / width))
    bin_width = step / fine
    reach = int(np.ceil(_REACH * width / bin_width))
    counts = _linear_bins((samples - grid[0]) / bin_width, -reach, (len(grid) - 1) * fine + reach)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * (bin_width / width)) ** 2)
    smooth = scipy.signal.fftconvolve(counts, kernel, mode="valid")[::fine]
    return np.asarray(np.maximum(smooth, 0.0) / (len(samples) * width * np.sqrt(2 * np.pi)))


def divergence(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """Return the published estimate of KL(first ‖ second), and its part from beyond the extremes of `second`.

    p log(p/q) is summed over 500 points, with 1e-12 added to both densities. Beyond the extremes of `second` the
    result depends on the 1e-12.

    Examples
    --------
    >>> a = np.random.default_rng(0).standard_normal(1000)
    >>> divergence(a, a)
    (0.0, 0.0)
    """
    low, high = min(first.min(), second.min()), max(first.max(), second.max())
    grid = np.linspace(low, high, POINTS)
    p, q = density(first, grid) + OFFSET, density(second, grid) + OFFSET
    terms = p * np.log(p / q) * (grid[1] - grid[0])
    beyond = (grid < second.min()) | (grid > second.max())
    return float(terms.sum()), float(terms[beyond].sum())


def _linear_bins(places: FloatArray, low: int, high: int) -> FloatArray:
    """Return sample weights at the integers from `low` to `high`, by linear binning."""
    inside = places[(places >= low) & (places < high)] - low
    left = inside.astype(np.int64)
    share = inside - left
    size = high - low + 1
    counts = np.bincount(left, 1.0 - share, size) + np.bincount(left + 1, share, size)
    return np.asarray(counts, dtype=np.float64)
