"""Covariances of the limit variables Z of Definition 1."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

import attncheck.layers.nonlinearity as nonlinearity
from attncheck._lib.errors import refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer

FloatArray = NDArray[np.float64]

# Matrices of the positions that are held at a time: covariances, the kernel and its root.
_MATRICES = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """Second moments K_jk = E[Z^{x^j} Z^{x^k}] of limit variables.

    Attributes
    ----------
    matrix : ndarray, shape (s, s)
        K, symmetric and read-only.
    error : float
        A bound on the error of every entry (rounding, or quadrature).
    """

    matrix: FloatArray
    error: float


def position_covariance(layer: AttentionLayer) -> FloatArray:
    """Return the (seq_len, seq_len) covariance of the e^i, over positions, of each coordinate.

    Examples
    --------
    >>> position_covariance(AttentionLayer(width=8, seq_len=2, position_std=2.0)).round(3)
    array([[4.   , 2.426],
           [2.426, 4.   ]])
    """
    distance = np.subtract.outer(np.arange(layer.seq_len), np.arange(layer.seq_len))
    return np.asarray(layer.position_std**2 * np.exp(-(distance**2) / (2.0 * layer.position_reach**2)))


def hidden_covariance(layer: AttentionLayer) -> FloatArray:
    """Return the (seq_len, seq_len) covariance of the Z^{h^i}, h^i = W^i h.

    Definition 1 (ii): W^i = √ρ · shared + √(1-ρ) · own, so h^i and h^j have correlation ρ. At finite width it
    is the covariance of h^i given h, over ‖h‖²/n.
    """
    rho, s = layer.input_correlation, layer.seq_len
    return np.asarray(layer.input_std**2 * ((1.0 - rho) * np.eye(s) + rho * np.ones((s, s))))


def input_covariance(layer: AttentionLayer, radius: float = 1.0) -> FloatArray:
    """Return the (seq_len, seq_len) covariance of the Z^{h^i + e^i}, or of h^i + e^i given ‖h‖²/n = `radius`.

    Raises
    ------
    InputError
        For sequences of which matrices of the positions take more than `attncheck._lib.memory.DEFAULT_MEMORY`.
    """
    what = "matrices of the positions"
    check_memory("seq_len", layer.seq_len, what, _MATRICES * layer.seq_len**2, "pass a shorter sequence")
    covariance = radius * hidden_covariance(layer)
    return covariance + position_covariance(layer) if layer.position_std else covariance


def image_kernel(phi: nonlinearity.Nonlinearity, covariance: FloatArray) -> Kernel:
    """Return the kernel of x^i = φ(h^i) for centred Gaussian Z^{h^i}: Definition 1 (iii).

    Parameters
    ----------
    phi : Nonlinearity
    covariance : ndarray, shape (s, s)
        Cov(Z^{h^i}, Z^{h^j}).

    Returns
    -------
    Kernel
    """
    variances = np.diagonal(covariance)
    matrix, error = phi.dual(variances[:, None], variances[None, :], covariance)
    matrix = 0.5 * (matrix + matrix.T)
    matrix.setflags(write=False)
    return Kernel(matrix, float(np.max(error)))


def input_kernel(layer: AttentionLayer) -> Kernel:
    """Return K of a layer's inputs: K_jk = E[Z^{x^j} Z^{x^k}], x^i = φ(h^i + e^i).

    Parameters
    ----------
    layer : AttentionLayer

    Returns
    -------
    Kernel
        `matrix` has shape (seq_len, seq_len).

    Raises
    ------
    InputError
        For sequences that are too long for it, see `input_covariance`.

    Examples
    --------
    >>> input_kernel(AttentionLayer(width=8, seq_len=2)).matrix
    array([[1., 0.],
           [0., 1.]])
    >>> input_kernel(AttentionLayer(width=8, seq_len=2, activation="relu")).matrix.round(6)
    array([[0.5     , 0.159155],
           [0.159155, 0.5     ]])
    """
    return image_kernel(nonlinearity.from_layer(layer), input_covariance(layer))


def psd_root(matrix: FloatArray, rtol: float = 1e-12, field: str = "matrix") -> FloatArray:
    """Return F with F Fᵀ = matrix and as many columns as the matrix has rank.

    Parameters
    ----------
    matrix : ndarray, shape (..., s, s)
        Positive semi-definite; singular ones are welcome.
    rtol : float
        Eigenvalues up to `rtol` times the largest are null directions, and dropped.
    field : str
        What errors call the matrix.

    Returns
    -------
    ndarray, shape (..., s, r)
        r is the largest rank in the batch; columns belong to eigenvalues in descending order.

    Raises
    ------
    InputError
        If the matrix is not square, not finite or has a clearly negative eigenvalue.

    Examples
    --------
    >>> psd_root(np.ones((2, 2))).round(6)
    array([[1.],
           [1.]])
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        refuse(f"{field}.shape", matrix.shape, "is not square", "pass covariance matrices")
    if not np.all(np.isfinite(matrix)):
        refuse(field, matrix, "must be finite", "remove NaN and infinite entries")
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[..., ::-1], vectors[..., ::-1]
    largest = np.abs(values).max(axis=-1, initial=0.0, keepdims=True)
    if np.any(values < -max(rtol, 1e-9) * largest):
        refuse(field, float(values.min()), "has a negative eigenvalue", "pass a positive semi-definite matrix")
    kept = values > rtol * largest
    rank = int(kept.sum(axis=-1).max(initial=0))
    # The sign that makes each column sum non-negative: eigenvectors come with either.
    signs = np.where(vectors.sum(axis=-2, keepdims=True) < 0, -1.0, 1.0)
    root = vectors * signs * np.sqrt(np.where(kept, values, 0.0))[..., None, :]
    return np.ascontiguousarray(root[..., :rank])
