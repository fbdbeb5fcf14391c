"""E f(Z) for independent standard normal Z in one or two dimensions, by the trapezoidal rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.nonlinearity.covariances import correlation

Function = Callable[[FloatArray], FloatArray]

# The normal law beyond nine standard deviations has mass 2e-19.
RANGE: Final = 9.0
# Numbers of steps per direction, tried until convergence. No number is twice another one: of two such grids, the finer
# one contains the coarser one, so both may alias a fast wave in the same way and agree on a wrong value.
_STEPS: Final = {1: (46, 100, 218, 472, 1024, 2222, 4822, 10464), 2: (46, 100, 218, 472, 1024)}
_EPS: Final = float(np.finfo(np.float64).eps)
_ROUNDING, _CONVERGED = 16 * _EPS, 8 * _EPS
# Error estimates are multiplied by this factor unless the function is known to be smooth, because kinks can hide
# between grid points. For the worst of 4000 random clips, a factor of 1.5 would have been enough.
_UNKNOWN: Final = 3.0
# The finest grid may miss kinks if √(1 - ρ²) is below `_NARROW`, with ρ the correlation of Z₁ and Z₂. An integral on
# a grid shifted by `_SHIFT` shows whether there are kinks.
_NARROW, _SHIFT = 0.05, 0.1234567

RANKS: Final = tuple(_STEPS)


def trapezoidal(
    function: Function, rank: int, tolerance: float = 1e-12, agreements: int = 1, half_range: float = RANGE
) -> tuple[float, float]:
    """Return E f(Z) for Z ~ N(0, I), and an estimate of the error.

    Convergence is geometric for functions that are analytic in a strip around the real axis, even with close poles,
    for which Gauss-Hermite rules fail. It is quadratic for functions with kinks.

    Parameters
    ----------
    function : callable
        Maps (rank, points) to (points,).
    rank : int
        1 or 2.
    tolerance : float
        Change, relative to E |f|, that counts as convergence.
    agreements : int
        Number of consecutive changes that must be that small.
    half_range : float
        Integration range on both sides of 0, in standard deviations.

    Returns
    -------
    value, error : float
        `error` is the last change of the value from one grid to the next. Without convergence, it is the largest of
        the last three changes, each converted to the finest grid by assuming quadratic convergence. Rounding errors
        are added.

    Examples
    --------
    >>> value, error = trapezoidal(lambda z: z[0] ** 2 * np.cos(z[1]), 2)
    >>> bool(abs(value - np.exp(-0.5)) < 1e-14), error < 1e-12
    (True, True)
    """
    previous, changes, calm = np.nan, [], 0
    for steps in _STEPS[rank]:
        value, size = _sum(function, rank, steps, half_range)
        changes.append(abs(value - previous))
        calm = calm + 1 if changes[-1] <= tolerance * size else 0
        if calm == agreements:
            return value, changes[-1] + _ROUNDING * size
        previous = value
    # A single change may be small by chance, so use the last three.
    gained = [(steps / _STEPS[rank][-1]) ** 2 for steps in _STEPS[rank][-3:]]
    return value, max(c * g for c, g in zip(changes[-3:], gained, strict=True)) + _ROUNDING * size


def _sum(function: Function, rank: int, steps: int, half_range: float) -> tuple[float, float]:
    """Return E f(Z) and E |f(Z)| from a grid of `steps` per direction."""
    nodes = np.linspace(-half_range, half_range, steps + 1)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    if rank == 1:
        values = function(nodes[None])
        return float(weights @ values), float(weights @ np.abs(values))
    # Compute fine grids in blocks that fit the processor's cache.
    total, size = 0.0, 0.0
    for start in range(0, steps + 1, 64):
        block = slice(start, start + 64)
        first, second = np.meshgrid(nodes[block], nodes, indexing="ij")
        grid = function(np.stack([first.ravel(), second.ravel()])).reshape(first.shape)
        total += float(weights[block] @ grid @ weights)
        size += float(weights[block] @ np.abs(grid) @ weights)
    return total, size


def dual(
    phi: Function, order: int, v1: FloatArray, v2: FloatArray, c: FloatArray, smooth: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Return E[φ(Z₁)φ(Z₂)] and an error estimate for each entry of the variances `v1`, `v2` and covariances `c`.

    `order` is the pseudo-Lipschitz order of φ. Unless φ is `smooth`, the estimate is larger, to allow for kinks.

    Examples
    --------
    >>> value, error = dual(np.tanh, 1, np.array([1.0]), np.array([2.0]), np.array([0.0]))
    >>> bool(abs(value[0]) < 1e-15)
    True
    """
    rows = np.stack([v1.ravel(), v2.ravel(), c.ravel()], axis=-1)
    # A kernel has few distinct covariances, and each is integrated once.
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    # Functions of order d need a wider range: the mass of |x|^{2d} exp(-x²/2) lies around √(2d).
    half_range = RANGE + (2.0 * (order - 1)) ** 0.5
    results = [_dual_of_one(phi, v, w, cov, smooth, half_range) for v, w, cov in distinct.tolist()]
    spread = np.array(results).reshape(-1, 2)[np.reshape(inverse, -1)]
    return spread[:, 0].reshape(v1.shape), spread[:, 1].reshape(v1.shape)


def _dual_of_one(phi: Function, v1: float, v2: float, c: float, smooth: bool, half_range: float) -> tuple[float, float]:
    coefficient, _ = correlation(np.asarray(v1), np.asarray(v2), np.asarray(c))
    rho, root1, root2 = float(coefficient), float(np.sqrt(v1)), float(np.sqrt(v2))
    sine = float(np.sqrt((1 - rho) * (1 + rho)))

    def product(z: FloatArray) -> FloatArray:
        second = rho * z[0] + sine * z[1] if sine > 0 else rho * z[0]
        return phi(root1 * z[0]) * phi(root2 * second)

    # A function that is not known to be smooth may be flat at the points of the first grids.
    agreements = 1 if smooth else 2
    value, error = trapezoidal(product, 2 if sine > 0 else 1, _CONVERGED, agreements, half_range)
    if smooth:
        return value, error
    error *= _UNKNOWN
    if 0 < sine < _NARROW:
        error += sine**3 * _size_if_kinked(phi, root1, half_range) * _size_if_kinked(phi, root2, half_range)
    return value, error


def _size_if_kinked(phi: Function, root: float, half_range: float) -> float:
    """Return √(E φ(Z)²) for a normal Z of standard deviation `root`, or 0 if no kinks of φ are found.

    At correlations ρ near ±1, kinks can fall between grid points, with an error of order (1 - ρ²)^{3/2} E φ(Z)².
    """

    def shifted(z: FloatArray) -> FloatArray:
        return np.asarray(phi(root * (z[0] + _SHIFT)) * np.exp(-_SHIFT * (z[0] + 0.5 * _SHIFT)))

    square, _ = trapezoidal(lambda z: phi(root * z[0]) ** 2, 1, _CONVERGED, 2, half_range)
    _, error = trapezoidal(shifted, 1, _CONVERGED, 2, half_range)
    return square**0.5 if error > 1e-11 * square**0.5 else 0.0
