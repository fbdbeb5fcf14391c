"""E[φ(z)φ(z)ᵀ] for a batch of covariances: one per draw of a stack's streams."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.polynomial.hermite_e import hermevander
from scipy import special

from attncheck._lib.arrays import FloatArray, IndexArray
from attncheck.layers.nonlinearity import Nonlinearity
from attncheck.layers.nonlinearity.covariances import correlation

_EPS: Final = float(np.finfo(np.float64).eps)
# Clipping beyond this many standard deviations changes no digit.
_NEVER_CLIPPED: Final = 12.0
# Hermite terms, and range, step and maximum number of points. Since tanh(√v z) has poles at ±iπ/(2√v), steps h have
# the error exp(-π²/(h √v)), which is rounding error up to h = 0.28/√v.
_TERMS, _RANGE, _STEP, _MOST_POINTS = 64, 13.0, 0.25, 4096
# Array entries per block.
_BLOCK: Final = 2**20


def image_kernels(phi: Nonlinearity, covariances: FloatArray) -> tuple[FloatArray, float]:
    """Return E[φ(z_j)φ(z_k)], z ~ N(0, C), for C (..., s, s), and an error bound relative to the diagonals.

    tanh uses the Hermite expansion Σ_m a_m(C_jj) a_m(C_kk) ρ^m, a_m(v) = E[φ(√v Z) He_m(Z)]/√m!. The remainder is
    at most ``|ρ|^64`` times the square root of the product of both remainders in Parseval's identity.

    Examples
    --------
    >>> from attncheck.layers.nonlinearity import tanh
    >>> kernels, error = image_kernels(tanh(), np.array([[[1.0, 0.5], [0.5, 2.0]]]))
    >>> value, _ = tanh().dual(1.0, 2.0, 0.5)
    >>> bool(abs(kernels[0, 0, 1] - value) < 1e-6), error < 1e-5
    (True, True)
    """
    size = covariances.shape[-1]
    variances = np.diagonal(covariances, axis1=-2, axis2=-1)
    rows, columns = np.triu_indices(size)
    v1, v2, c = variances[..., rows], variances[..., columns], covariances[..., rows, columns]
    if phi.name == "tanh":
        upper, error = _hermite(phi, variances, rows, columns, c)
    elif phi.name == "clip":
        upper, error = _clipped(phi, v1, v2, c)
    else:
        upper, error = phi.dual(v1, v2, c)
    kernels = np.empty_like(covariances)
    kernels[..., rows, columns] = upper
    kernels[..., columns, rows] = upper
    squares = np.diagonal(kernels, axis1=-2, axis2=-1)
    scale = np.sqrt(squares[..., rows] * squares[..., columns])
    return kernels, float(np.max(np.divide(error, scale, out=np.zeros_like(scale), where=scale > 0), initial=0.0))


def _clipped(phi: Nonlinearity, v1: FloatArray, v2: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return E[φ(Z₁)φ(Z₂)] for clip, and its error bound; it is c where variances are too small for any clipping."""
    near = _NEVER_CLIPPED**2 * np.maximum(v1, v2) > phi.parameters[0] ** 2
    value, error = c.copy(), _EPS * np.sqrt(v1 * v2)
    if near.any():
        value[near], error[near] = phi.dual(v1[near], v2[near], c[near])
    return value, error


def _hermite(
    phi: Nonlinearity, variances: FloatArray, rows: IndexArray, columns: IndexArray, c: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return E[φ(Z₁)φ(Z₂)] for tanh, by the Hermite expansion at each variance of `variances`."""
    flat = variances.reshape(-1, variances.shape[-1])
    value, error = np.empty((len(flat), len(rows))), np.empty((len(flat), len(rows)))
    root = float(np.sqrt(variances.max(initial=0.0)))
    count = int(min(_MOST_POINTS, 2 * _RANGE / min(_STEP, 0.28 / max(root, 1e-9)))) + 1
    nodes = np.linspace(-_RANGE, _RANGE, count)
    basis = _hermite_functions(nodes)
    step = max(1, _BLOCK // (count * flat.shape[-1]))
    for start in range(0, len(flat), step):
        block = flat[start : start + step]
        images = phi(np.sqrt(block)[..., None] * nodes)
        # Even terms of an odd function are 0. Terms are on the first axis, so that each is contiguous.
        coefficients = np.ascontiguousarray(np.moveaxis(images @ basis[1::2].T, -1, 0))
        squares = (images**2) @ basis[0]
        rest = np.maximum(squares - (coefficients**2).sum(axis=0), 0.0)
        covariance = c.reshape(-1, len(rows))[start : start + step]
        rho, _ = correlation(block[:, rows], block[:, columns], covariance)
        total, square = np.zeros_like(rho), rho * rho
        for term in coefficients[::-1]:
            total *= square
            total += term[:, rows] * term[:, columns]
        total *= rho
        omitted = np.abs(rho) ** _TERMS * np.sqrt(rest[:, rows] * rest[:, columns])
        rounding = 64 * _EPS * np.sqrt(squares[:, rows] * squares[:, columns])
        # Diagonal entries need no expansion.
        same = rows == columns
        value[start : start + step] = np.where(same, squares[:, rows], total)
        error[start : start + step] = rounding + np.where(same, 0.0, omitted)
    return value.reshape(c.shape), error.reshape(c.shape)


def _hermite_functions(nodes: FloatArray) -> FloatArray:
    """Return normal weights at `nodes` times orthonormal Hermite polynomials, (terms, nodes)."""
    weights = np.exp(-0.5 * nodes**2)
    polynomials = hermevander(nodes, _TERMS - 1) / np.sqrt(special.factorial(np.arange(_TERMS)))
    return np.asarray(weights / weights.sum() * polynomials.T)
