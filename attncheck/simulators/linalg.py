"""Batched linear algebra on Gram matrices, possibly singular."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray

# A Cholesky pivot below this fraction of the largest pivot has at most about four correct digits.
_SAFE_PIVOT = 1e-6


def gram_of(vectors: FloatArray) -> FloatArray:
    """Return the Gram matrices of (..., s, m) vectors, divided by m."""
    return np.asarray(vectors @ vectors.swapaxes(-1, -2) / vectors.shape[-1])


def input_root(inputs: FloatArray, gram: FloatArray) -> FloatArray:
    """Return F, (..., s, min(s, n)), with F Fᵀ = `gram`, the Gram matrix of `inputs`, (..., s, n)."""
    seq_len, width = inputs.shape[-2:]
    return np.asarray(inputs * width**-0.5) if width <= seq_len else gram_root(gram)


def gram_root(gram: FloatArray) -> FloatArray:
    """Return F (..., s, s) with F Fᵀ = gram: the Cholesky factor if well conditioned, else `eigen_root`.

    Examples
    --------
    >>> F = gram_root(np.array([[1.0, 1.0], [1.0, 1.0]]))
    >>> np.allclose(F @ F.T, 1.0)
    True
    """
    try:
        root = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return eigen_root(gram)
    pivots = np.diagonal(root, axis1=-2, axis2=-1)
    if pivots.size and (pivots.min(axis=-1) < _SAFE_PIVOT * pivots.max(axis=-1)).any():
        return eigen_root(gram)
    return np.asarray(root, dtype=np.float64)


def eigen_root(gram: FloatArray) -> FloatArray:
    """Return F with F Fᵀ = gram from eigenvectors, for any rank.

    Columns for zero eigenvalues, and rows for zero vectors, are exactly 0. Otherwise, scores that are 0 would have the
    sign of a rounding error.
    """
    values, vectors = np.linalg.eigh(gram)
    rounding = gram.shape[-1] * np.finfo(np.float64).eps * values[..., -1:]
    root = vectors * np.sqrt(np.where(values > rounding, values, 0.0))[..., None, :]
    nonzero = np.diagonal(gram, axis1=-2, axis2=-1)[..., None] > 0.0
    return np.asarray(np.where(nonzero, root, 0.0), dtype=np.float64)


def lower_root(gram: FloatArray) -> FloatArray:
    """Return the Cholesky factor for any rank, with zero columns for dependent positions.

    Unlike a root from eigenvectors, it is a stable function of the matrix.

    Examples
    --------
    >>> lower_root(np.ones((2, 2)))
    array([[1., 0.],
           [1., 0.]])
    """
    size = gram.shape[-1]
    rounding = 8.0 * size * np.finfo(np.float64).eps
    root = np.zeros_like(gram)
    for k in range(size):
        column = gram[..., k:, k] - (root[..., k:, :k] @ root[..., k, :k, None])[..., 0]
        pivot = column[..., :1]
        alive = pivot > rounding * gram[..., k, k, None]
        scale = np.sqrt(np.where(alive, pivot, 1.0))
        root[..., k:, k] = np.where(alive, column / scale, 0.0)
    return root


def bartlett(rng: np.random.Generator, batch: tuple[int, ...], rank: int, dof: int) -> FloatArray:
    """Draw lower triangular T with T Tᵀ ~ Wishart_rank(dof, I), in an array (*batch, rank, min(rank, dof)).

    For i = 1, 2, …, T_ii² has the law χ² with dof - i + 1 degrees of freedom. Entries below the diagonal are N(0, 1).
    """
    columns = min(rank, dof)
    factor = np.zeros((*batch, rank, columns))
    below = np.tril_indices(rank, -1, columns)
    factor[..., *below] = rng.standard_normal((*batch, len(below[0])))
    diagonal = np.arange(columns)
    factor[..., diagonal, diagonal] = np.sqrt(rng.chisquare(dof - diagonal, size=(*batch, columns)))
    return factor
