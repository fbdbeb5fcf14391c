"""Pairs of score rows under softmax, and interpolation of their integrals."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.theory.limits import chebyshev

# Controls for scores above this standard deviation need at least this effective number of directions, (Σ λ)² / Σ λ².
_DIRECTIONS, _MODERATE = 8.0, 1 / 4


@dataclasses.dataclass(frozen=True)
class RowPair:
    """Two score rows u, x with Cov(u_j, u_m) = var_u K_jm, Cov(u_j, x_l) = corr √(var_u var_x) K_jl.

    `seen_u` and `seen_x` are their numbers of visible positions.
    """

    seen_u: int
    seen_x: int
    var_u: float
    var_x: float
    corr: float

    @property
    def first(self) -> tuple[int, float]:
        """Distribution parameters of the first row."""
        return self.seen_u, self.var_u

    @property
    def second(self) -> tuple[int, float, float]:
        """Distribution parameters of the second row, given the normals of the first."""
        return self.seen_x, self.var_x, self.corr


def largest_score(kernel: FloatArray) -> float:
    """Return the largest standard deviation of a centred score in a row of variance one."""
    own = np.diagonal(kernel) - 2 * kernel.mean(axis=0) + kernel.mean()
    return float(max(own.max(), 0.0) ** 0.5)


def few_directions(kernel: FloatArray, std: float) -> bool:
    """Return whether rows of this standard deviation have too few directions for controls.

    With few directions, controls fit so well that the spread of replicates does not show the error from scores
    beyond all points.
    """
    if std * largest_score(kernel) <= _MODERATE:
        return False
    covariance = centred(kernel)
    return bool(np.trace(covariance) ** 2 < _DIRECTIONS * (covariance**2).sum())


def centred(kernel: FloatArray) -> FloatArray:
    """Return the covariance of a centred row of scores of variance one."""
    centring = np.eye(len(kernel)) - 1.0 / len(kernel)
    covariance = centring @ kernel @ centring
    return np.asarray(0.5 * (covariance + covariance.T))


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Three-dimensional grid of Chebyshev nodes: the standard deviations of two rows, and their correlation.

    Integrals are symmetric in the two standard deviations, so that each unordered pair of them occurs once.
    """

    stds: FloatArray
    corrs: FloatArray
    std_range: tuple[float, float]
    corr_range: tuple[float, float]
    seen: int

    @classmethod
    def around(cls, pairs: Sequence[RowPair], largest: float) -> Grid | None:
        """Return a grid that spans the pairs, or None if it would have at least as many nodes as there are pairs."""
        stds = np.sqrt([pair.var_u for pair in pairs] + [pair.var_x for pair in pairs])
        corrs = np.array([pair.corr for pair in pairs])
        std_range, corr_range = (float(stds.min()), float(stds.max())), (float(corrs.min()), float(corrs.max()))
        length, of_corrs = std_range[1] - std_range[0], corr_range[1] - corr_range[0]
        m = chebyshev.node_count(length, std_range[1], 3 + int(np.ceil(3 * length * largest)))
        n = chebyshev.node_count(of_corrs, 1.0, 4 + int(np.ceil(5 * of_corrs * max(1.0, std_range[1] * largest))))
        # Check the count first: large scores may need more nodes than memory allows.
        if m * (m + 1) // 2 * n >= len(pairs):
            return None
        return cls(
            chebyshev.nodes(std_range, m), chebyshev.nodes(corr_range, n), std_range, corr_range, pairs[0].seen_u
        )

    @functools.cached_property
    def nodes(self) -> list[RowPair]:
        """Pairs of rows at the nodes, whose integrals `interpolate` needs."""
        variances = self.stds**2
        return [
            RowPair(self.seen, self.seen, variances[i], variances[k], float(corr))
            for i, k in itertools.combinations_with_replacement(range(len(variances)), 2)
            for corr in self.corrs
        ]

    def interpolate(self, values: FloatArray, pairs: Sequence[RowPair]) -> tuple[FloatArray, float]:
        """Return the integrals of pairs, (pairs, REPLICATES), and the interpolation error."""
        m, n = len(self.stds), len(self.corrs)
        table = np.empty((m, m, n, values.shape[1]))
        for index, (i, k) in enumerate(itertools.combinations_with_replacement(range(m), 2)):
            table[i, k] = table[k, i] = values[index * n : (index + 1) * n]
        to_std, to_corr = chebyshev.to_coefficients(m), chebyshev.to_coefficients(n)
        coefficients = np.einsum("am,bk,cn,mknr->abcr", to_std, to_std, to_corr, table, optimize=True)
        sizes = np.abs(coefficients.mean(axis=-1))
        off = 2 * chebyshev.left_out(sizes.sum(axis=(1, 2))) + chebyshev.left_out(sizes.sum(axis=(0, 1)))
        first = np.stack([chebyshev.polynomials(self.std_range, pair.var_u**0.5, m) for pair in pairs])
        second = np.stack([chebyshev.polynomials(self.std_range, pair.var_x**0.5, m) for pair in pairs])
        third = np.stack([chebyshev.polynomials(self.corr_range, pair.corr, n) for pair in pairs])
        result = np.einsum("pa,pb,pc,abcr->pr", first, second, third, coefficients, optimize=True)
        return np.asarray(result), off
