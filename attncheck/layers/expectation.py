"""Quadrature of E f(Z) for Gaussian vectors Z, with error estimates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.layers.kernel import psd_root
from attncheck.layers.nonlinearity.quadrature import RANKS, trapezoidal

Function = Callable[[FloatArray], FloatArray]

# Number of random shifts of a Sobol sequence, and log2 of the number of points per shift.
_SHIFTS, _POINTS = 16, 14
# For `normal_points`: number of grid points per direction, the largest of them, and log2 of the number of Sobol points.
_GRID, _RANGE, _SHARED_POINTS = 41, 7.0, 11


def expectation(function: Function, mean: FloatArray, covariance: FloatArray) -> tuple[float, float]:
    """Return E f(Z) for Z ~ N(mean, covariance), possibly singular, and an error estimate.

    `function` maps (m, points) to (points,). Covariances of rank 1 or 2 use the trapezoidal rule, which converges
    geometrically for smooth functions and quadratically across kinks. Higher ranks use randomly shifted Sobol
    sequences, with six standard errors as the error estimate.

    Examples
    --------
    >>> value, error = expectation(lambda z: z[0] ** 2 * z[1] ** 2, np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]]))
    >>> round(value, 10), error < 1e-9
    (1.5, True)
    """
    root = psd_root(covariance) if len(mean) else np.zeros((0, 0))
    rank = root.shape[1]

    def at(z: FloatArray) -> FloatArray:
        return function(mean[:, None] + root @ z)

    if rank == 0:
        return float(at(np.zeros((0, 1)))[0]), 0.0
    return trapezoidal(at, rank) if rank in RANKS else _sobol(at, rank)


def normal_points(covariance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return quadrature points, (m, p), and their weights, (p,), for expectations of functions of N(0, covariance).

    The points are a grid if the covariance has rank 2 or less. Otherwise they are Sobol points with exact mean and
    covariance, so that squares of linear functions are integrated exactly.

    Examples
    --------
    >>> points, weights = normal_points(np.eye(3))
    >>> bool(abs((points[0] + points[2]) ** 2 @ weights - 2.0) < 1e-12)
    True
    """
    root = psd_root(covariance) if len(covariance) else np.zeros((0, 0))
    rank = root.shape[1]
    if rank > 2:
        points = _sobol_points(rank, 0, _SHARED_POINTS)
        points -= points.mean(axis=1, keepdims=True)
        mended = np.linalg.solve(np.linalg.cholesky(points @ points.T / points.shape[1]), points)
        return root @ mended, np.full(points.shape[1], 1.0 / points.shape[1])
    nodes = np.linspace(-_RANGE, _RANGE, _GRID)
    weights = np.exp(-0.5 * nodes**2) / np.exp(-0.5 * nodes**2).sum()
    grid = np.meshgrid(*[nodes] * rank, indexing="ij")
    shares = np.meshgrid(*[weights] * rank, indexing="ij")
    count = _GRID**rank
    flat = np.reshape(grid, (rank, count))
    return root @ flat, np.prod(np.reshape(shares, (rank, count)), axis=0)


def _sobol(function: Function, rank: int) -> tuple[float, float]:
    means = [float(function(_sobol_points(rank, shift, _POINTS)).mean()) for shift in range(_SHIFTS)]
    return float(np.mean(means)), 6.0 * float(np.std(means, ddof=1)) / _SHIFTS**0.5


def _sobol_points(rank: int, shift: int, power: int) -> FloatArray:
    """Return 2^power normal points of a randomly shifted Sobol sequence, (rank, points).

    `shift` is the index of the random shift.
    """
    engine = scipy.stats.qmc.Sobol(rank, scramble=True, rng=stream(0, "expectation", rank, shift))
    # Scrambled points may round to 0, where the normal quantile is infinite.
    points = np.clip(engine.random_base2(power), 2.0**-54, 1 - 2.0**-53)
    return np.asarray(special.ndtri(points).T)
