"""Covariances of the limit variables Z of Definition 1."""

from __future__ import annotations

import dataclasses

import numpy as np

import attncheck.layers.nonlinearity as nonlinearity
from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import centred, normalised_gram

# Number of (s, s) matrices that are in memory at the same time, for `check_memory`.
_MATRICES = 4
# Odd activations, φ(-x) = -φ(x).
_ODD = ("clip", "tanh", "erf", "identity")


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """Second moments K_jk = E[Z^{x^j} Z^{x^k}] of the limit variables Z^{x^j} of s inputs, as a matrix (s, s).

    `error` bounds the error of every entry.
    """

    matrix: FloatArray
    error: float


def position_covariance(layer: AttentionLayer) -> FloatArray:
    """Return the covariance of a coordinate of the position vectors e^i, (seq_len, seq_len).

    Examples
    --------
    >>> position_covariance(AttentionLayer(width=8, seq_len=2, position_std=2.0)).round(3)
    array([[4.   , 2.426],
           [2.426, 4.   ]])
    """
    distance = np.subtract.outer(np.arange(layer.seq_len), np.arange(layer.seq_len))
    return np.asarray(layer.position_std**2 * np.exp(-(distance**2) / (2.0 * layer.position_reach**2)))


def input_covariance(layer: AttentionLayer, radius: float = 1.0) -> FloatArray:
    """Return the covariance of a coordinate of h^i + e^i over positions i, (seq_len, seq_len), given ‖h‖²/n = `radius`.

    For `radius` 1 it is the covariance of the limit variables Z^{h^i + e^i}. A sequence that is too long for memory
    raises `InputError`.
    """
    description = "matrices over the positions"
    check_memory("seq_len", layer.seq_len, description, _MATRICES * layer.seq_len**2, "pass a shorter sequence")
    rho, s = layer.input_correlation, layer.seq_len
    covariance = radius * np.asarray(layer.input_std**2 * ((1.0 - rho) * np.eye(s) + rho * np.ones((s, s))))
    return covariance + position_covariance(layer) if layer.position_std else covariance


def image_kernel(phi: nonlinearity.Nonlinearity, covariance: FloatArray) -> Kernel:
    """Return the kernel E[φ(Z_j) φ(Z_k)] for centred Gaussian Z with the given covariance (Definition 1 (iii))."""
    variances = np.diagonal(covariance)
    matrix, error = phi.dual(variances[:, None], variances[None, :], covariance)
    matrix = 0.5 * (matrix + matrix.T)
    matrix.setflags(write=False)
    return Kernel(matrix, float(np.max(error)))


def image_mean(phi: nonlinearity.Nonlinearity, variances: FloatArray) -> FloatArray:
    """Return E φ(z), z ~ N(0, v), for each variance v.

    Examples
    --------
    >>> image_mean(nonlinearity.relu(), np.array([1.0, 4.0])).round(4)
    array([0.3989, 0.7979])
    """
    if phi.name in _ODD:
        return np.zeros_like(variances)
    if phi.name == "relu":
        return np.asarray(np.sqrt(variances / (2.0 * np.pi)))
    refuse("activation", phi.name, "has no implemented mean", f"use one of {', '.join(_ODD)} or relu")


def input_moments(layer: AttentionLayer) -> tuple[Kernel, FloatArray]:
    """Return E[φ(Z_j) φ(Z_k)] and E φ(Z_j), where Z_j is the limit of h^j + e^j."""
    phi, covariance = layer.phi, input_covariance(layer)
    return image_kernel(phi, covariance), image_mean(phi, np.diagonal(covariance))


def input_kernel(layer: AttentionLayer) -> Kernel:
    """Return the kernel of a layer's inputs, K_jk = E[Z^{x^j} Z^{x^k}], shape (seq_len, seq_len).

    With a norm, K_jk = C_jk/√(C_jj C_kk) (Fact 1), where C contains the second moments of the unnormalised inputs for
    RMS norm, and their covariances for layer norm.

    Examples
    --------
    >>> input_kernel(AttentionLayer(width=8, seq_len=2)).matrix
    array([[1., 0.],
           [0., 1.]])
    >>> input_kernel(AttentionLayer(width=8, seq_len=2, activation="relu")).matrix.round(6)
    array([[0.5     , 0.159155],
           [0.159155, 0.5     ]])
    >>> rms = AttentionLayer(width=8, seq_len=2, activation="relu", norm="rms")
    >>> input_kernel(rms).matrix.round(6)  # by layer norm it is diagonal
    array([[1.     , 0.31831],
           [0.31831, 1.     ]])
    """
    if layer.norm is None:
        return image_kernel(layer.phi, input_covariance(layer))
    kernel, means = input_moments(layer)
    matrix = normalised_gram(layer.norm, kernel.matrix, means)
    matrix.setflags(write=False)
    smallest = float(np.diagonal(centred(layer.norm, kernel.matrix, means)).min())
    # The error of C_jk/√(C_jj C_kk) comes from C_jk, C_jj and C_kk. Means have rounding errors only.
    rounding = 8.0 * float(np.finfo(np.float64).eps) * float(np.diagonal(kernel.matrix).max())
    return Kernel(matrix, 2.0 * (kernel.error + rounding) / smallest)


def limit_inputs(layer: AttentionLayer, hidden: FloatArray) -> FloatArray:
    """Return the inputs' limit variables Z^{x^i} from Z^{h^i + e^i}, both (..., seq_len, neurons)."""
    images = layer.phi(hidden)
    if layer.norm is None:
        return images
    kernel, means = input_moments(layer)
    lengths = np.sqrt(np.diagonal(centred(layer.norm, kernel.matrix, means)))
    shift = means if layer.norm == "layer" else np.zeros_like(means)
    return np.asarray((images - shift[:, None]) / lengths[:, None])


def psd_root(matrix: FloatArray, rtol: float = 1e-12) -> FloatArray:
    """Return F with F Fᵀ = matrix.

    Columns are ordered by descending eigenvalue; there are as many as the largest rank in the batch. Eigenvalues up to
    `rtol` times the largest count as 0. Matrices that are not finite and positive semi-definite raise an `InputError`.

    Examples
    --------
    >>> psd_root(np.ones((2, 2))).round(6)
    array([[1.],
           [1.]])
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        refuse("matrix.shape", matrix.shape, "is not square", "pass covariance matrices")
    if not np.all(np.isfinite(matrix)):
        refuse("matrix", matrix, "must be finite", "remove NaN and infinite entries")
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[..., ::-1], vectors[..., ::-1]
    largest = np.abs(values).max(axis=-1, initial=0.0, keepdims=True)
    if np.any(values < -max(rtol, 1e-9) * largest):
        problem = "is the smallest eigenvalue, which must not be negative"
        refuse("matrix", float(values.min()), problem, "pass a positive semi-definite matrix")
    retained = values > rtol * largest
    rank = int(retained.sum(axis=-1).max(initial=0))
    # Eigenvectors have arbitrary signs; make the sum of each column non-negative.
    signs = np.where(vectors.sum(axis=-2, keepdims=True) < 0, -1.0, 1.0)
    root = vectors * signs * np.sqrt(np.where(retained, values, 0.0))[..., None, :]
    return np.ascontiguousarray(root[..., :rank])
