"""Whitening by conditional covariances, including singular ones.

Directions are dropped by eigenvalues of the covariance, never by the residual itself, so that the law of the residual
stays exact.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import numpy as np
from scipy import special

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray

# Bound for normal scores: Φ(-37) is about the smallest float.
_LARGEST_SCORE = 37.0
# If the lower tail probability is below this, it is the smaller one, whatever its rounding error.
_PLAINLY = 0.49
# Bartlett factors are used only if the whitened Gram matrix has a rounding error below this.
_LEGIBLE = 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class Residual:
    """Values that are i.i.d. N(0, 1) under the null where the mask `kept` is True, and 0 where it is False.

    `values` and `kept` have the same shape.
    """

    values: FloatArray
    kept: BoolArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.where(self.kept, self.values, 0.0))

    def flat(self) -> FloatArray:
        """Return the kept values, in C order."""
        return self.values[self.kept]

    def paired_with(self, variable: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the kept values, and as many of `variable`, which is broadcast to the shape of `values`."""
        return self.flat(), np.broadcast_to(variable, self.values.shape)[self.kept]

    def uniform(self) -> tuple[FloatArray]:
        """Return Φ of the kept values, as the data of `Uniform`."""
        return (special.ndtr(self.flat()),)

    def squares(self, first_axes: int = 1) -> tuple[FloatArray, FloatArray]:
        """Return the sum of squares over all but the first `first_axes` axes, and its degrees of freedom."""
        axes = tuple(range(first_axes, self.values.ndim))
        return (self.values**2).sum(axis=axes), self.kept.sum(axis=axes).astype(np.float64)

    def mean_square(self) -> FloatArray:
        """Return the mean square of each draw's kept values, (draws,); 0 where there are none."""
        squares, dof = self.squares()
        return squares / np.maximum(dof, 1.0)

    def energy_scores(self, first_axes: int) -> FloatArray:
        """Return the sum of squares over all but the first `first_axes` axes, as a normal score (0 where empty)."""
        squares, dof = self.squares(first_axes)
        return np.where(dof > 0, chi_square_scores(np.maximum(dof, 1.0), squares), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Whitener:
    """Inverse roots R of a batch of Gram matrices G, such that Rᵀ G R = I.

    Directions that consist of rounding errors are dropped: the mask `kept` is False for them, and the columns of R that
    belong to them are 0.
    """

    inverse_root: FloatArray
    kept: BoolArray

    def whiten(self, columns: FloatArray) -> Residual:
        """Return Rᵀ C for `columns` C (..., s, k).

        The result is i.i.d. N(0, 1) if the columns are normal and the Gram matrix is the covariance of each of them.
        """
        values = self.inverse_root.swapaxes(-1, -2) @ columns
        return Residual(values, np.broadcast_to(self.kept[..., None], values.shape))

    def spread(self, axis: int) -> Self:
        """Return the whitener with a new batch axis, e.g. to broadcast over heads."""
        return type(self)(*(np.expand_dims(value, axis) for value in vars(self).values()))


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum(Whitener):
    """Inverse roots U Λ^{-1/2} and roots U √Λ of Gram matrices with eigendecompositions U Λ Uᵀ.

    The mask `kept` is False for eigenvalues that are dropped as rounding errors.
    """

    root: FloatArray

    @property
    def condition(self) -> FloatArray:
        """The largest eigenvalue divided by the smallest kept one, (...); 1 if none is kept."""
        values = (self.root**2).sum(axis=-2)
        smallest = np.where(self.kept, values, np.inf).min(axis=-1)
        return np.where(self.kept.any(axis=-1), values.max(axis=-1), 1.0) / np.where(np.isinf(smallest), 1.0, smallest)


def precision(array: FloatArray) -> float:
    """Return the rounding unit of float32 if every value is a float32 number, and otherwise that of float64."""
    # Look at the first draw alone first: if it needs double precision, the others need not be read.
    single = _single(array[:1]) and _single(array)
    return float(np.finfo(np.float32 if single else np.float64).eps)


def _single(array: FloatArray) -> bool:
    finite = array[np.isfinite(array)]
    with np.errstate(over="ignore"):
        return bool((finite.astype(np.float32) == finite).all())


def spectrum(gram: FloatArray, eps: float) -> Spectrum:
    """Return the eigendecompositions of Gram matrices (..., s, s).

    With rounding unit eps, eigenvalues below eps^0.6 of the largest are dropped; kept ones have relative errors below
    eps^0.4.
    """
    values, vectors = np.linalg.eigh(gram)
    retained = values > np.maximum(eps**0.6 * values[..., -1:], 0.0)
    lengths = np.sqrt(np.where(retained, values, 1.0))[..., None, :]
    mask = retained[..., None, :]
    return Spectrum(np.where(mask, vectors / lengths, 0.0), retained, np.where(mask, vectors * lengths, 0.0))


def triangular(gram: FloatArray, eps: float, power: float = 0.6) -> Whitener:
    """Return upper triangular inverse roots of Gram matrices (..., s, s), by Gram–Schmidt over the positions.

    A position's residual is a sum of vectors that may cancel. The position is dropped if the squared length of its
    residual is below eps^0.6 times the squared sum of the lengths of these vectors, with eps the rounding unit. Errors
    are as in `spectrum`.
    """
    size = gram.shape[-1]
    lengths = np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))
    rows, retained = np.zeros_like(gram), np.zeros(gram.shape[:-1], dtype=bool)
    for k in range(size):
        shared = (rows[..., :k, :] @ gram[..., :, k, None])[..., 0]
        row = -(shared[..., None, :] @ rows[..., :k, :])[..., 0, :]
        row[..., k] += 1.0
        square = gram[..., k, k] - (shared**2).sum(axis=-1)
        retained[..., k] = square > eps**power * (np.abs(row) * lengths).sum(axis=-1) ** 2
        length = np.sqrt(np.where(retained[..., k], square, 1.0))
        rows[..., k, :] = np.where(retained[..., k, None], row / length[..., None], 0.0)
    return Whitener(rows.swapaxes(-1, -2), retained)


def gram_factor(gram: FloatArray, eps: float) -> FloatArray:
    """Return F with gram = F Fᵀ for Gram matrices (..., s, s), dropping only directions that are rounding errors.

    Correlations have errors of size eps, even if positions have very different lengths. `spectrum` drops more
    directions, which matters where sums of rows cancel.
    """
    lengths = np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))[..., None]
    unit = np.where(lengths > 0, lengths, 1.0)
    values, vectors = np.linalg.eigh(gram / unit / unit.swapaxes(-1, -2))
    retained = values > gram.shape[-1] * eps * values[..., -1:]
    factor: FloatArray = lengths * vectors * np.sqrt(np.where(retained, values, 0.0))[..., None, :]
    return factor


def factor_whitener(factor: FloatArray, scale: FloatArray, eps: float) -> Whitener:
    """Return the inverse root of the Gram matrices F Fᵀ, given their factors F (draws, s, m), with min(s, m) columns.

    It is computed from the SVD of F, because the condition number of F Fᵀ is the square of that of F. A direction is
    dropped if it is shorter than eps^0.3 times `scale` (draws,), the length of the longest row before cancellation, or
    shorter than 10 eps^0.3 times the longest direction. `eps` is the rounding unit.
    """
    vectors, lengths, _ = np.linalg.svd(factor, full_matrices=False)
    used = lengths > eps**0.3 * np.maximum(10 * lengths[..., :1], scale[:, None])
    return Whitener(np.where(used[..., None, :], vectors, 0.0) / np.where(used, lengths, 1.0)[..., None, :], used)


def bartlett_residual(wishart: FloatArray, retained: BoolArray, dof: int, rounding: FloatArray) -> Residual:
    """Return the Bartlett factor of Wishart_r(dof, I) matrices (draws, groups, s, s) as independent standard normals.

    The square of the i-th diagonal entry, counted from 1, is χ² with dof - i + 1 degrees of freedom; it is replaced by
    a normal score. With r the rank of `retained` (draws, groups, s), the matrices are 0 outside the last r rows and
    columns. `rounding` (draws,) is the absolute error of the matrix entries divided by `dof`; factors with large errors
    are dropped.
    """
    values = np.zeros_like(wishart)
    used = np.zeros(wishart.shape, dtype=bool)
    ranks = retained.sum(axis=-1)
    for rank in np.unique(ranks[ranks > 0]):
        where = ranks == rank
        # For rank 1, the matrix is a single number with a small relative error.
        lost = rounding[np.nonzero(where)[0]] * (rank > 1)
        factor, factor_used = _factor(wishart[where][:, -rank:, -rank:], dof, lost)
        # Boolean indexing copies, so write the block through an explicit index.
        index = np.ix_(*[np.arange(rank)] * 2)
        block_values, block_used = values[where], used[where]
        block_values[:, index[0], index[1]], block_used[:, index[0], index[1]] = factor, factor_used
        values[where], used[where] = block_values, block_used
    return Residual(values, used)


def _factor(wishart: FloatArray, dof: int, rounding: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Return Bartlett factors of Wishart matrices (draws, r, r) as normal scores, and a mask of the entries to use."""
    rank = wishart.shape[-1]
    columns = min(rank, dof)
    factor = _semi_cholesky(wishart, columns, dof * rounding)
    diagonal = np.arange(columns)
    factor[:, diagonal, diagonal] = chi_square_scores(dof - diagonal, factor[:, diagonal, diagonal] ** 2)
    used = np.tri(rank, dtype=bool) & (np.arange(rank) < columns)
    return factor, used & (rounding < _LEGIBLE)[:, None, None]


def _semi_cholesky(matrices: FloatArray, columns: int, rounding: FloatArray) -> FloatArray:
    """Return the first `columns` columns of Cholesky factors; unlike in LAPACK, pivots are at least `rounding`."""
    factor = np.zeros_like(matrices)
    for j in range(columns):
        column = matrices[:, j:, j] - (factor[:, j:, :j] @ factor[:, j, :j, None])[..., 0]
        pivot = np.sqrt(np.maximum(column[:, 0], rounding))[:, None]
        factor[:, j:, j] = np.divide(column, pivot, out=np.zeros_like(column), where=pivot > 0)
        factor[:, j, j] = pivot[:, 0]
    return factor


def chi_square_scores(dof: FloatArray | IntArray | int, squares: FloatArray) -> FloatArray:
    """Return normal scores Φ^{-1}(F(x)) of `squares` x, with F the cdf of χ²_dof.

    They are computed from the smaller tail.
    """
    below = np.asarray(special.chdtr(dof, squares))
    # Compute the upper tail only where it may be the smaller one.
    above = special.chdtrc(dof, squares, out=np.ones_like(below), where=~(below < _PLAINLY))
    near = below < above
    scores = special.ndtri(np.where(near, below, above))
    return np.clip(np.where(near, scores, -scores), -_LARGEST_SCORE, _LARGEST_SCORE)
