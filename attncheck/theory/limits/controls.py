"""Control variates for softmax: products of exponentials of normals with known means, and regression on them."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray

# Added to the diagonal of the correlations, in case controls are nearly dependent.
_RIDGE = 1e-7
# Number of products of `exponential_means`, and indices of those with the weighted sum b.
_PRODUCTS, _WEIGHTED = 11, (0, 6, 7, 8, 9, 10)
# Indices of the products of b, d and e (`RowControls`) that remain distinct if both rows are the same. With equal
# powers d and e are equal; with opposite powers, changing the sign of the scores swaps them.
_OF_EQUAL, _OF_OPPOSITE = (0, 1, 4, 6, 9), (0, 1, 3, 4, 6, 8, 9)


def regress(moments: FloatArray) -> FloatArray:
    """Return the mean of the integrand in each replicate, with controls if they reduce the spread.

    `moments`, (REPLICATES, 2 + m, 2 + m), are mean products of (1, centred controls, integrand). Coefficients come
    from the other replicates, so they are independent of the data.
    """
    others = (moments.sum(axis=0) - moments) / (len(moments) - 1)
    centred = others - others[:, 0, :, None] * others[:, 0, None, :]
    spread = np.sqrt(np.maximum(np.diagonal(centred, axis1=1, axis2=2)[:, 1:-1], 0.0))
    # Constant controls contain only rounding errors, and get coefficient 0.
    scale = np.where(spread > 1e-13, spread, np.inf)
    correlations = centred[:, 1:-1, 1:-1] / (scale[:, :, None] * scale[:, None, :])
    correlations += _RIDGE * np.eye(scale.shape[1])
    coefficients = np.linalg.solve(correlations, (centred[:, 1:-1, -1] / scale)[:, :, None])[:, :, 0] / scale
    plain = moments[:, 0, -1]
    controlled = plain - np.einsum("rm,rm->r", moments[:, 0, 1:-1], coefficients)
    # In few directions and for large scores, Sobol points without controls are more accurate.
    return np.asarray(controlled if controlled.std() < 0.5 * plain.std() else plain)


def less_known(controls: FloatArray, known: FloatArray) -> FloatArray:
    """Return controls, (controls, points), minus their known means, divided by these means where nonzero."""
    scale = np.where(known != 0, known, 1.0)
    return np.asarray(controls / scale[:, None] - (known != 0)[:, None])


def exponential_means(
    kernel: FloatArray, u: FloatArray, x: FloatArray, cross: FloatArray, squares: bool
) -> list[float]:
    """Return means of products of the sums b, d, e of exponentials in `attncheck.theory.limits.heads`.

    They are b, d, e, de, dd, ee, bd, be and, with `squares`, bde, bdd, bee. `u`, `x` and `cross` are the covariances
    of the rows' exponents.
    """
    m, n = np.exp(0.5 * np.diagonal(u)), np.exp(0.5 * np.diagonal(x))
    eu, ex, ec = np.exp(u), np.exp(x), np.exp(cross)
    weights = kernel * np.outer(m, n) * ec
    means = [
        float(weights.sum()),
        float(m.sum()),
        float(n.sum()),
        float(m @ ec @ n),
        float(m @ eu @ m),
        float(n @ ex @ n),
        float((weights * ((eu * m) @ ec)).sum()),
        float((weights * ((ec * n) @ ex)).sum()),
    ]
    if squares:
        # Given indices j and l, sums with one more term of u, and with one more term of x: (j, l, m) and (j, l, n).
        further_u = (eu * m)[:, None, :] * ec.T[None, :, :]
        further_x = (ec * n)[:, None, :] * ex[None, :, :]
        means += [
            float((weights * np.einsum("jlm,jlm->jl", further_u @ ec, further_x)).sum()),
            float((weights * np.einsum("jlm,jlm->jl", further_u @ eu, further_u)).sum()),
            float((weights * np.einsum("jln,jln->jl", further_x @ ex, further_x)).sum()),
        ]
    return means


@dataclasses.dataclass(frozen=True, eq=False)
class RowControls:
    """Controls for a row u of scores and its negative: products of Σ e^{t u_j} and Σ_jl e^{t u_j + t' u_l} W_jl.

    W is in turn the kernel, the kernel with squared entries and, if given, `line` in all columns. `powers` are pairs of
    equal or opposite t, t'.
    """

    kernel: FloatArray
    covariance: FloatArray
    powers: tuple[tuple[float, float], ...]
    line: FloatArray | None = None

    @property
    def count(self) -> int:
        """Number of controls."""
        return int(self._taken.sum())

    @functools.cached_property
    def _taken(self) -> BoolArray:
        """Mask of the distinct controls, (products, powers)."""
        taken = np.zeros((_PRODUCTS + 2 * len(_WEIGHTED), len(self.powers)), dtype=bool)
        for column, (first, second) in enumerate(self.powers):
            of_kernel = _OF_EQUAL if first == second else _OF_OPPOSITE
            of_line: tuple[int, ...] = ()
            if self.line is not None:
                of_line = _OF_EQUAL if first == second else _WEIGHTED
            taken[list(of_kernel), column] = True
            for block, chosen in enumerate((of_kernel, of_line)):
                start = _PRODUCTS + block * len(_WEIGHTED)
                taken[[start + place for place, k in enumerate(_WEIGHTED) if k in chosen], column] = True
        return taken

    @functools.cached_property
    def _known(self) -> FloatArray:
        """Exact means of the products."""
        means, ones = np.zeros(self._taken.shape), np.ones(len(self.kernel))
        line = ones if self.line is None else self.line
        for column, (first, second) in enumerate(self.powers):
            moments = first**2 * self.covariance, second**2 * self.covariance, first * second * self.covariance
            plain, of_squares, of_line = (
                np.array(exponential_means(weights, *moments, squares=True))
                for weights in (self.kernel, self.kernel**2, np.outer(line, ones))
            )
            means[:, column] = np.concatenate([plain, of_squares[list(_WEIGHTED)], of_line[list(_WEIGHTED)]])
        return np.asarray(means[self._taken])

    @functools.cached_property
    def _sums(self) -> FloatArray:
        """Weights by which exponentials are summed, in columns: kernel, squared kernel, `line` or ones, and ones."""
        ones = np.ones((len(self.kernel), 1))
        line = ones if self.line is None else self.line[:, None]
        return np.concatenate([self.kernel, self.kernel**2, line, ones], axis=1)

    def of(self, scores: FloatArray) -> FloatArray:
        """Return centred and scaled controls, (controls, points), for scores (points, s)."""
        s, total = len(self.kernel), np.zeros((self.count, len(scores)))
        if not self.powers:
            return total
        exponentials = {size: np.exp(size * scores) for size in sorted({abs(t) for pair in self.powers for t in pair})}
        exponentials |= {-size: 1.0 / each for size, each in exponentials.items()}
        sums = {power: each @ self._sums for power, each in exponentials.items()}
        for sign in (1.0, -1.0):
            found = []
            for first, second in self.powers:
                u, x = sums[sign * first], sums[sign * second]
                by_kernel, by_squares = (
                    np.einsum("ps,ps->p", u[:, k : k + s], exponentials[sign * second]) for k in (0, s)
                )
                found.append([u[:, -1], x[:, -1], by_kernel, by_squares, u[:, -2] * x[:, -1]])
            d, e, b, *weighted = np.array(found).swapaxes(0, 1)
            de, dd, ee = d * e, d * d, e * e
            products = [b, d, e, de, dd, ee, b * d, b * e, b * de, b * dd, b * ee]
            for v in weighted:
                products += [v, v * d, v * e, v * de, v * dd, v * ee]
            total += 0.5 * np.array(products)[self._taken]
        return less_known(total, self._known)
