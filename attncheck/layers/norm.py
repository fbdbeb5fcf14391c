"""RMS norm and layer norm of vectors, Gram matrices and kernels, without gain and bias.

With G = X Xᵀ/n and m the means over neurons, the Gram matrix of the normalised vectors is, exactly and at every
width,

    Ĝ_ij = C_ij/√(C_ii C_jj),   C = G for RMS norm, G - m mᵀ for layer norm.

A vector that is 0, or constant for layer norm, becomes 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.inputs import Norm

# Entries of a centred vector below this fraction of the largest original entry are rounding errors.
_ROUNDING: Final = 1e-12


def normalised(norm: Norm | None, vectors: FloatArray) -> FloatArray:
    """Return normalised vectors (..., n), unchanged if `norm` is None.

    Examples
    --------
    >>> normalised("rms", np.array([3.0, 4.0])).round(4), normalised("layer", np.array([3.0, 4.0]))
    (array([0.8485, 1.1314]), array([-1.,  1.]))
    """
    if norm is None:
        return vectors
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    deviations = vectors - vectors.mean(axis=-1, keepdims=True) if norm == "layer" else vectors
    lengths = np.sqrt(np.mean(deviations**2, axis=-1, keepdims=True))
    return np.divide(deviations, lengths, out=np.zeros_like(deviations), where=lengths > _ROUNDING * largest)


def centred(norm: Norm | None, gram: FloatArray, means: FloatArray) -> FloatArray:
    """Return the Gram matrix of vectors after layer norm has subtracted their means; for other norms, `gram` itself.

    `gram`, (..., s, s), is the Gram matrix G of the vectors, and `means`, (..., s), contains the mean m of each vector
    over its neurons. The result for layer norm is G - m mᵀ.
    """
    return gram - means[..., :, None] * means[..., None, :] if norm == "layer" else gram


def normalised_gram(norm: Norm | None, gram: FloatArray, means: FloatArray) -> FloatArray:
    """Return the Gram matrix or kernel (..., s, s) of normalised vectors; its diagonal is exactly 1 or 0.

    Examples
    --------
    >>> normalised_gram("rms", np.array([[4.0, 1.0], [1.0, 1.0]]), np.zeros(2))
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    if norm is None:
        return gram
    covariance = centred(norm, gram, means)
    variances = np.diagonal(covariance, axis1=-2, axis2=-1)
    alive = variances > _ROUNDING * np.diagonal(gram, axis1=-2, axis2=-1)
    scale = np.divide(1.0, np.sqrt(np.where(alive, variances, 1.0)), out=np.zeros_like(variances), where=alive)
    result = covariance * (scale[..., :, None] * scale[..., None, :])
    diagonal = np.arange(variances.shape[-1])
    result[..., diagonal, diagonal] = alive
    return np.asarray(result)


def with_ones(norm: Norm | None, vectors: FloatArray) -> FloatArray:
    """Return `vectors`, (..., s, n), with a vector of ones appended for layer norm; unchanged for other norms.

    The last row of the Gram matrix then contains the mean of each vector.
    """
    if norm != "layer":
        return vectors
    return np.concatenate([vectors, np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]))], axis=-2)


def normalised_with_ones(norm: Norm | None, gram: FloatArray) -> FloatArray:
    """Return the Gram matrix of normalised vectors.

    `gram` is the Gram matrix of the result of `with_ones`, so that it contains the means of the vectors.
    """
    if norm != "layer":
        return normalised_gram(norm, gram, np.zeros(gram.shape[:-1]))
    return normalised_gram(norm, gram[..., :-1, :-1], gram[..., :-1, -1])
