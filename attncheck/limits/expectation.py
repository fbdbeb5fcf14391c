"""E f(Z) of a Gaussian vector Z by quadrature, with an estimate of its error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.stats import qmc

from attncheck.evidence.streams import stream
from attncheck.limits.kernel import psd_root

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], FloatArray]

# Beyond nine standard deviations lies 2e-19 of the normal law.
_REACH = 9.0
# Points per direction of the trapezoidal rule, doubled until the value settles.
_STEPS = {1: (64, 128, 256, 512, 1024, 2048, 4096, 8192), 2: (64, 128, 256, 512, 1024)}
# Random shifts of a Sobol sequence, and the points of each, as a power of two.
_SHIFTS, _POINTS = 16, 14
_SETTLED = 1e-12


def expectation(function: Function, mean: FloatArray, covariance: FloatArray) -> tuple[float, float]:
    """Return E f(Z) for Z ~ N(mean, covariance), and an estimate of the error.

    Parameters
    ----------
    function : callable
        Maps (m, points) to (points,).
    mean : ndarray, shape (m,)
    covariance : ndarray, shape (m, m)
        May be singular: only the directions that exist are integrated over.

    Returns
    -------
    value, error : float
        By the trapezoidal rule in one or two directions, which converges geometrically for smooth functions
        and as the square of the step across kinks; beyond by shifted Sobol sequences, with six standard errors.

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
    return _trapezoidal(at, rank) if rank in _STEPS else _sobol(at, rank)


def _trapezoidal(function: Function, rank: int) -> tuple[float, float]:
    previous, value, change = np.nan, np.nan, np.inf
    for steps in _STEPS[rank]:
        nodes = np.linspace(-_REACH, _REACH, steps + 1)
        weights = np.exp(-0.5 * nodes**2)
        weights /= weights.sum()
        if rank == 1:
            value = float(weights @ function(nodes[None]))
        else:
            # One line of the grid at a time in blocks, so that fine grids stay in the cache.
            value = 0.0
            for start in range(0, steps + 1, 64):
                block = slice(start, start + 64)
                first, second = np.meshgrid(nodes[block], nodes, indexing="ij")
                grid = function(np.stack([first.ravel(), second.ravel()])).reshape(first.shape)
                value += float(weights[block] @ grid @ weights)
        change = abs(value - previous)
        if change <= _SETTLED * max(1.0, abs(value)):
            break
        previous = value
    return value, change


def _sobol(function: Function, rank: int) -> tuple[float, float]:
    means = []
    for shift in range(_SHIFTS):
        engine = qmc.Sobol(rank, scramble=True, rng=stream(0, "expectation", rank, shift))
        # A scrambled point may be 0 to the last digit.
        points = np.clip(engine.random_base2(_POINTS), 2.0**-54, 1 - 2.0**-53)
        means.append(float(function(special.ndtri(points).T).mean()))
    return float(np.mean(means)), 6.0 * float(np.std(means, ddof=1)) / _SHIFTS**0.5
