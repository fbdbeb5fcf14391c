"""The mean of S over the scores, κ_ik = c Σ_jl E[A_ij A_kl] K_jl: the kernel of infinitely many heads.

For softmax it is integrated by Sobol points with control variates. A pair of rows of scores enters only through
what the two rows see, their variances and their correlation, so that many pairs share an integral, and pairs that
do not are interpolated between Chebyshev nodes where that takes fewer integrals.

Scores are centred over what a row sees, which softmax does not notice. For a power t let d = Σ_j e^{t u_j} and
e = Σ_l e^{t x_l} for two rows u, x, and b = Σ_jl e^{t u_j + t x_l} K_jl. At t = 1 the integrand is b/(d e), and the
means of b d^m e^n are closed, as all means of exponentials of Gaussian variables are. They are the controls, with
squares of the scores, and at powers below one, where they fluctuate less.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from attncheck.limits.kernel import FloatArray, psd_root
from attncheck.limits.rows import REPLICATES, scrambled_normals

# Standard errors that an error estimate spans: 99.5% of Student's law with 7 degrees of freedom.
_SPAN = 4.0
# Powers of the exponentials among the controls, for scores of standard deviation up to one.
_POWERS = (1 / 4, 1 / 2)
# What all points may cost, in about nanoseconds, and how many of one scrambling there are at least and at most.
_COST = 1.5e9
_FEWEST, _MOST = 2**7, 2**14
# Numbers of a block of points.
_BLOCK = 2**23
# Products that the means of the costliest controls may take.
_PRODUCTS = 4e8
# What keeps the regression solvable where controls are nearly dependent.
_RIDGE = 1e-7
_DIGITS = 12


@dataclasses.dataclass(frozen=True)
class RowPair:
    """Two rows of scores, u and x: Cov(u_j, u_m) = var_u K_jm, Cov(u_j, x_l) = corr √(var_u var_x) K_jl.

    Attributes
    ----------
    seen_u, seen_x : int
        The rows see this many first positions.
    var_u, var_x : float
    corr : float
    """

    seen_u: int
    seen_x: int
    var_u: float
    var_x: float
    corr: float

    @property
    def first(self) -> tuple[int, float]:
        """What the first row is like."""
        return self.seen_u, self.var_u

    @property
    def second(self) -> tuple[int, float, float]:
        """What the second row is like, given the normals of the first."""
        return self.seen_x, self.var_x, self.corr


def softmax_means(kernel: FloatArray, score_std: float, causal: bool, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return Σ_jl E[A_ij A_kl] K_jl for A the softmax of G, Cov(G_ij, G_kl) = score_std² K_ik K_jl.

    Parameters
    ----------
    kernel : ndarray, shape (s, s)
        K, positive semi-definite.
    score_std : float
        σ_Q σ_K, positive.
    causal : bool
        Whether row i sees the first i + 1 positions only.
    seed : int
        Of the scramblings.

    Returns
    -------
    means, errors : ndarray, shape (s, s)
        The errors are four standard errors between scramblings, and what interpolation may be wrong by.
    """
    pairs = _pairs(kernel, score_std, causal)
    own = list(dict.fromkeys(pair for (i, k), pair in pairs.items() if i == k))
    both = [pair for pair in dict.fromkeys(pairs.values()) if pair not in own]
    # Rows with themselves vary most and cost least: they have points of their own.
    values = dict(zip(own, _integrate(kernel, own, [seed, 0]), strict=True))
    off = dict.fromkeys(values, 0.0)
    grid = None if causal or not both else _Grid.around(both)
    if grid is None:
        values.update(zip(both, _integrate(kernel, both, [seed, 1]), strict=True))
    else:
        interpolated, error = grid.interpolate(_integrate(kernel, grid.nodes, [seed, 1]), both)
        values.update(zip(both, interpolated, strict=True))
        off.update(dict.fromkeys(both, error))
    of_pairs = np.stack([values[pair] for pair in pairs.values()])
    interpolation = np.array([off.get(pair, 0.0) for pair in pairs.values()])
    spread = _SPAN * of_pairs.std(axis=1, ddof=1) / REPLICATES**0.5
    means, errors = np.empty(kernel.shape), np.empty(kernel.shape)
    for (i, k), mean, error in zip(pairs, of_pairs.mean(axis=1), spread + interpolation, strict=True):
        means[i, k] = means[k, i] = mean
        errors[i, k] = errors[k, i] = error
    return means, errors


def _pairs(kernel: FloatArray, score_std: float, causal: bool) -> dict[tuple[int, int], RowPair]:
    """Return what the integral of each pair of positions depends on, rounded so that equal ones are found."""
    s, own = len(kernel), np.diagonal(kernel)
    scale = np.sqrt(np.outer(own, own))
    corr = np.clip(np.divide(kernel, scale, out=np.zeros_like(kernel), where=scale > 0), -1.0, 1.0).round(_DIGITS)
    variances = [float(f"{score_std**2 * value:.{_DIGITS}g}") for value in own]
    pairs = {}
    for i, k in itertools.combinations_with_replacement(range(s), 2):
        seen = (i + 1, k + 1) if causal else (s, s)
        first, second = (i, k) if causal or variances[i] <= variances[k] else (k, i)
        pairs[i, k] = RowPair(*seen, variances[first], variances[second], 1.0 if i == k else float(corr[i, k]))
    return pairs


@dataclasses.dataclass(frozen=True, eq=False)
class _Grid:
    """Chebyshev nodes in the standard deviations of two rows and in their correlation.

    The integral is a symmetric function of the standard deviations, so nodes with the smaller one first suffice.
    """

    stds: FloatArray
    corrs: FloatArray
    std_range: tuple[float, float]
    corr_range: tuple[float, float]
    seen: int

    @classmethod
    def around(cls, pairs: Sequence[RowPair]) -> _Grid | None:
        """Return a grid that spans the pairs, with more nodes where they span more; None where these are no fewer."""
        stds = np.sqrt([pair.var_u for pair in pairs] + [pair.var_x for pair in pairs])
        corrs = np.array([pair.corr for pair in pairs])
        std_range, corr_range = (float(stds.min()), float(stds.max())), (float(corrs.min()), float(corrs.max()))
        m = _count(std_range, 3 + int(np.ceil(3 * (std_range[1] - std_range[0]))))
        n = _count(corr_range, 4 + int(np.ceil(5 * (corr_range[1] - corr_range[0]) * max(1.0, std_range[1]))))
        # Counted and not made: large scores ask for more nodes than memory holds.
        if m * (m + 1) // 2 * n >= len(pairs):
            return None
        return cls(_nodes(std_range, m), _nodes(corr_range, n), std_range, corr_range, pairs[0].seen_u)

    @functools.cached_property
    def nodes(self) -> list[RowPair]:
        """The pairs to integrate."""
        variances = self.stds**2
        return [
            RowPair(self.seen, self.seen, variances[i], variances[k], float(corr))
            for i, k in itertools.combinations_with_replacement(range(len(variances)), 2)
            for corr in self.corrs
        ]

    def interpolate(self, values: FloatArray, pairs: Sequence[RowPair]) -> tuple[FloatArray, float]:
        """Return the integrals of pairs, (pairs, scramblings), and what interpolation may be wrong by.

        The last coefficient in a direction is larger than all that are left out together, where they decay.
        """
        m, n = len(self.stds), len(self.corrs)
        table = np.empty((m, m, n, values.shape[1]))
        for index, (i, k) in enumerate(itertools.combinations_with_replacement(range(m), 2)):
            table[i, k] = table[k, i] = values[index * n : (index + 1) * n]
        to_std, to_corr = _to_coefficients(m), _to_coefficients(n)
        coefficients = np.einsum("am,bk,cn,mknr->abcr", to_std, to_std, to_corr, table, optimize=True)
        sizes = np.abs(coefficients.mean(axis=-1))
        last = 2 * sizes[-1].sum() * (m > 1) + sizes[:, :, -1].sum() * (n > 1)
        first = np.stack([_chebyshev(self.std_range, pair.var_u**0.5, m) for pair in pairs])
        second = np.stack([_chebyshev(self.std_range, pair.var_x**0.5, m) for pair in pairs])
        third = np.stack([_chebyshev(self.corr_range, pair.corr, n) for pair in pairs])
        result = np.einsum("pa,pb,pc,abcr->pr", first, second, third, coefficients, optimize=True)
        return np.asarray(result), float(last)


def _count(between: tuple[float, float], wanted: int) -> int:
    """Return the number of nodes that is wanted of an interval, and one where it is a point."""
    low, high = between
    return 1 if high - low <= 1e-9 * max(1.0, abs(high)) else wanted


def _nodes(between: tuple[float, float], count: int) -> FloatArray:
    """Return Chebyshev nodes of an interval."""
    low, high = between
    if count == 1:
        return np.array([0.5 * (low + high)])
    return np.asarray(0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(count) + 0.5) / count))


def _to_coefficients(count: int) -> FloatArray:
    """Return the matrix that maps values at Chebyshev nodes to coefficients of Chebyshev polynomials."""
    angles = np.pi * (np.arange(count) + 0.5) / count
    matrix = 2.0 / count * np.cos(np.outer(np.arange(count), angles))
    matrix[0] *= 0.5
    return np.asarray(matrix)


def _chebyshev(between: tuple[float, float], at: float, count: int) -> FloatArray:
    """Return the values of the Chebyshev polynomials of an interval at a point."""
    low, high = between
    place = 0.0 if count == 1 else np.clip((2 * at - low - high) / (high - low), -1.0, 1.0)
    return np.asarray(np.cos(np.arange(count) * np.arccos(place)))


def _integrate(kernel: FloatArray, pairs: Sequence[RowPair], key: list[int]) -> FloatArray:
    """Return E[αᵀKα'] for the softmax weights α, α' of each pair of rows, (pairs, REPLICATES)."""
    if not pairs:
        return np.empty((0, REPLICATES))
    rule = _Rule.of(kernel, pairs)
    streams = np.random.SeedSequence([*key, len(kernel)]).spawn(REPLICATES)
    moments = np.stack([rule.moments(np.random.default_rng(stream)) for stream in streams])
    return np.stack([_regress(moments[:, p]) for p in range(len(pairs))])


def _regress(moments: FloatArray) -> FloatArray:
    """Return the mean in each scrambling, by the controls' known means where that lessens the spread.

    The coefficients are those of the other scramblings, so that they are independent of what they are used on.

    Parameters
    ----------
    moments : ndarray, shape (REPLICATES, 2 + m, 2 + m)
        Means of products of (1, controls, integrand); the controls have their known means taken off.
    """
    others = (moments.sum(axis=0) - moments) / (len(moments) - 1)
    centred = others - others[:, 0, :, None] * others[:, 0, None, :]
    spread = np.sqrt(np.maximum(np.diagonal(centred, axis1=1, axis2=2)[:, 1:-1], 0.0))
    # Constant controls have rounding only to give.
    scale = np.where(spread > 1e-13, spread, np.inf)
    correlations = centred[:, 1:-1, 1:-1] / (scale[:, :, None] * scale[:, None, :])
    correlations += _RIDGE * np.eye(scale.shape[1])
    coefficients = np.linalg.solve(correlations, (centred[:, 1:-1, -1] / scale)[:, :, None])[:, :, 0] / scale
    plain = moments[:, 0, -1]
    controlled = plain - np.einsum("rm,rm->r", moments[:, 0, 1:-1], coefficients)
    # In few directions Sobol points alone do better, and so they do where scores are large.
    return np.asarray(controlled if controlled.std() < 0.5 * plain.std() else plain)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rule:
    """How pairs of rows are integrated: the points, and which controls there are."""

    kernel: FloatArray
    pairs: Sequence[RowPair]
    powers: tuple[float, ...]
    squares: bool
    points: int

    @classmethod
    def of(cls, kernel: FloatArray, pairs: Sequence[RowPair]) -> _Rule:
        """Return a rule that takes a second or two, whatever the number of pairs."""
        s = len(kernel)
        own = np.diagonal(kernel) - 2 * kernel.mean(axis=0) + kernel.mean()
        largest = max(pair.var_x for pair in pairs) * max(float(own.max()), 0.0)
        powers = tuple(power / max(1.0, largest**0.5) for power in _POWERS)
        squares = sum((pair.seen_u * pair.seen_x) ** 2 for pair in pairs) * 6 <= _PRODUCTS
        cost = _rows(pairs) * s * (60 + 0.7 * s) + len(pairs) * (800 + 4 * s)
        wanted = _COST / (REPLICATES * cost)
        points = int(2 ** np.floor(np.log2(np.clip(wanted, _FEWEST, _MOST))))
        return cls(kernel, pairs, powers, squares, points)

    @functools.cached_property
    def kernel_root(self) -> FloatArray:
        """F with F Fᵀ = K."""
        return psd_root(self.kernel)

    @functools.cached_property
    def _roots(self) -> dict[int, FloatArray]:
        return {}

    def root(self, seen: int) -> FloatArray:
        """Return what normals are multiplied by for a row of variance one, centred over what it sees: (seen, r)."""
        if seen not in self._roots:
            s = len(self.kernel)
            if all(pair.seen_u == pair.seen_x == s for pair in self.pairs):
                centring = np.eye(s) - 1.0 / s
                # One direction less than the kernel has, the largest first.
                self._roots[seen] = (
                    psd_root(_symmetric(centring @ self.kernel @ centring)) if s > 1 else np.zeros((1, 0))
                )
            else:
                root = self.kernel_root[:seen]
                self._roots[seen] = root - root.mean(axis=0)
        return self._roots[seen]

    def moments(self, rng: np.random.Generator) -> FloatArray:
        """Return means of products of (1, controls, integrand) over one scrambling, for each pair."""
        rank = self.root(self.pairs[0].seen_u).shape[1]
        normals = scrambled_normals(2 * rank, self.points, rng) if rank else np.zeros((1, 0))
        step = max(1, _BLOCK // (8 * _rows(self.pairs) * len(self.kernel)))
        known = [self.control_means(pair) for pair in self.pairs]
        total: FloatArray | float = 0.0
        for start in range(0, len(normals), step):
            total = total + np.stack(list(self._block(normals[start : start + step], known)))
        return np.asarray(total / len(normals))

    def _block(self, normals: FloatArray, known: Sequence[FloatArray]) -> Iterator[FloatArray]:
        rank = normals.shape[1] // 2
        one, other = normals[:, :rank], normals[:, rank:]
        firsts = {row: self._row(*row, one) for row in dict.fromkeys(pair.first for pair in self.pairs)}
        seconds = {
            (seen, var, corr): firsts[seen, var]
            if corr == 1.0 and (seen, var) in firsts
            else self._row(seen, var, corr * one + (1.0 - corr**2) ** 0.5 * other)
            for seen, var, corr in dict.fromkeys(pair.second for pair in self.pairs)
        }
        for pair, means in zip(self.pairs, known, strict=True):
            first, second = firsts[pair.first], seconds[pair.second]
            # Antithetic: the scores with both signs.
            values = 0.5 * (self._values(first[0], second[0]) + self._values(first[1], second[1]))
            columns = np.concatenate([np.ones((1, len(normals))), values])
            scale = np.where(means != 0, means, 1.0)
            columns[1:-1] = columns[1:-1] / scale[:, None] - (means != 0)[:, None]
            yield columns @ columns.T

    def _row(self, seen: int, var: float, normals: FloatArray) -> tuple[_Row, _Row]:
        """Return what is needed of a row and of the row with the other sign."""
        scores = var**0.5 * (normals @ self.root(seen).T)
        root = self.kernel_root[:seen]
        projected, lengths = scores @ root, np.einsum("ps,ps->p", scores, scores)
        small = np.exp(self.powers[0] * scores)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))

        def of(sign: float, first: FloatArray, weights: FloatArray) -> _Row:
            # The second power is twice the first.
            exponentials = (first, first * first)
            total = weights.sum(axis=1)
            return _Row(
                (weights @ root) / total[:, None],
                sign * projected,
                lengths,
                [each @ root for each in exponentials],
                [each.sum(axis=1) for each in exponentials],
            )

        negative = np.exp(scores.min(axis=1, keepdims=True) - scores)
        return of(1.0, small, weights), of(-1.0, 1.0 / small, negative)

    def _values(self, first: _Row, second: _Row) -> FloatArray:
        """Return the controls and, last, the integrand, (2 + m - 1, points)."""
        values = [np.einsum("pr,pr->p", first.scores, second.scores), first.lengths, second.lengths]
        for t in range(len(self.powers)):
            b = np.einsum("pr,pr->p", first.exponentials[t], second.exponentials[t])
            d, e = first.sums[t], second.sums[t]
            bd, be = b * d, b * e
            values += [b, d, e, d * e, d * d, e * e, bd, be]
            if self.squares:
                values += [bd * e, bd * d, be * e]
        values.append(np.einsum("pr,pr->p", first.weights, second.weights))
        return np.stack(values)

    def control_means(self, pair: RowPair) -> FloatArray:
        """Return the exact means of the controls, in the order of `_values`."""
        of_u, of_x = pair.var_u**0.5 * self.root(pair.seen_u), pair.var_x**0.5 * self.root(pair.seen_x)
        kernel = self.kernel[: pair.seen_u, : pair.seen_x]
        u, x, cross = of_u @ of_u.T, of_x @ of_x.T, pair.corr * (of_u @ of_x.T)
        means = [float((kernel * cross).sum()), float(np.trace(u)), float(np.trace(x))]
        for power in self.powers:
            means += self._exponential_means(kernel, power**2 * u, power**2 * x, power**2 * cross)
        return np.array(means)

    def _exponential_means(self, kernel: FloatArray, u: FloatArray, x: FloatArray, cross: FloatArray) -> list[float]:
        """Return the means of b, d, e, de, dd, ee, bd, be and, where wanted, bde, bdd, bee at one power."""
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
        if self.squares:
            # Of one more u given j and l, and of one more x: (j, l, m) and (j, l, n).
            further_u = (eu * m)[:, None, :] * ec.T[None, :, :]
            further_x = (ec * n)[:, None, :] * ex[None, :, :]
            means += [
                float((weights * np.einsum("jlm,jlm->jl", further_u @ ec, further_x)).sum()),
                float((weights * np.einsum("jlm,jlm->jl", further_u @ eu, further_u)).sum()),
                float((weights * np.einsum("jln,jln->jl", further_x @ ex, further_x)).sum()),
            ]
        return means


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    """A row of scores at the points: projections on a root of the kernel, (points, r), and sums, (points,)."""

    weights: FloatArray
    scores: FloatArray
    lengths: FloatArray
    exponentials: list[FloatArray]
    sums: list[FloatArray]


def _rows(pairs: Sequence[RowPair]) -> int:
    """Return how many rows of scores the pairs are made from."""
    firsts = {pair.first for pair in pairs}
    return len(firsts) + len({pair.second for pair in pairs if not (pair.corr == 1.0 and pair.second[:2] in firsts)})


def _symmetric(matrix: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (matrix + matrix.T))
