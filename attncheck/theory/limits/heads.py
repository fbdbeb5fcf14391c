"""Mean of S over softmax scores, κ_ik = c Σ_jl E[A_ij A_kl] K_jl: the kernel of infinitely many heads.

Integrals use Sobol points with control variates; `attncheck.theory.limits.one_row` handles many unmasked pairs with
moderate scores. Equal pairs of rows share an integral; the integrals of others may be interpolated between Chebyshev
nodes.

Scores are centred, which leaves softmax unchanged. For power t and rows u, x let d = Σ_j e^{t u_j}, e = Σ_l e^{t x_l}
and b = Σ_jl e^{t u_j + t x_l} K_jl. The integrand is b/(d e) at t = 1. Controls are squared scores and b d^m e^n,
whose Gaussian means are known, at t < 1, where they vary less.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.kept import kept
from attncheck.layers.kernel import psd_root
from attncheck.theory.limits.controls import exponential_means, less_known, regress
from attncheck.theory.limits.one_row import OneRow
from attncheck.theory.limits.row_pairs import Grid, RowPair, centred, few_directions, largest_score
from attncheck.theory.limits.rows import REPLICATES, error_of_mean, power_of_two, scrambled_normals

# Powers of exponentials in the controls, for score standard deviations up to one.
_POWERS = (1 / 4, 1 / 2)
# Cost of all points, roughly in nanoseconds, and limits on points per replicate.
_COST = 1.5e9
_FEWEST, _MOST = 2**7, 2**14
# Entries of a block of points, and points per block, to fit caches.
_BLOCK, _NEAR = 2**23, 2**11
# Maximum number of products in the means of the costliest controls.
_PRODUCTS = 4e8
_DIGITS = 12


def softmax_means(kernel: FloatArray, score_std: float, causal: bool, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return Σ_jl E[A_ij A_kl] K_jl and its error: order 0 of `softmax_moments`."""
    return softmax_moments(kernel, score_std, causal, seed, (0,))[0]


def softmax_moments(
    kernel: FloatArray, score_std: float, causal: bool, seed: int, orders: Sequence[int]
) -> list[tuple[FloatArray, FloatArray]]:
    """Return moments of the softmax A of G, Cov(G_ij, G_kl) = score_std² K_ik K_jl, as (means, errors), (s, s) each.

    Order 0 is Σ_jl E[A_ij A_kl] K_jl. Order 1 is E tr(J_i K J_kᵀ K), with J the derivative of the weights with
    respect to the scores. It is the derivative of the order 0 moment with respect to the correlation of rows i and k,
    divided by their standard deviations. Errors are interpolation errors plus four standard errors from the replicates.
    """
    pairs = _pairs(kernel, score_std, causal)
    own = list(dict.fromkeys(pair for (i, k), pair in pairs.items() if i == k))
    both = [pair for pair in dict.fromkeys(pairs.values()) if pair not in own]
    one_row = None if causal else OneRow.around(kernel, own + both)

    def values(order: int) -> tuple[dict[RowPair, FloatArray], dict[RowPair, float]]:
        if one_row is None:
            return _values_of(kernel, own, both, causal, seed, order)
        found, errors = one_row.interpolate(own + both, seed, order)
        return dict(zip(own + both, found, strict=True)), dict(zip(own + both, errors.tolist(), strict=True))

    return [_assembled(pairs, *values(order)) for order in orders]


def _assembled(
    pairs: dict[tuple[int, int], RowPair], values: dict[RowPair, FloatArray], off: dict[RowPair, float]
) -> tuple[FloatArray, FloatArray]:
    """Return means and errors as matrices from the integrals of pairs."""
    of_pairs = np.stack([values[pair] for pair in pairs.values()])
    interpolation = np.array([off.get(pair, 0.0) for pair in pairs.values()])
    spread = error_of_mean(of_pairs, axis=1)
    s = max(pairs)[0] + 1
    means, errors = np.empty((s, s)), np.empty((s, s))
    for (i, k), mean, error in zip(pairs, of_pairs.mean(axis=1), spread + interpolation, strict=True):
        means[i, k] = means[k, i] = mean
        errors[i, k] = errors[k, i] = error
    return means, errors


def _values_of(
    kernel: FloatArray, own: list[RowPair], both: list[RowPair], causal: bool, seed: int, order: int
) -> tuple[dict[RowPair, FloatArray], dict[RowPair, float]]:
    """Return the moments of each pair of rows, (REPLICATES,), and their interpolation errors.

    `own` are pairs of a row with itself, `both` pairs of different rows; see `softmax_moments` for `order`.
    """
    # Pairs of a row with itself have the noisiest integrals and cost least, so they get separate points.
    values = dict(zip(own, _integrate(kernel, own, [seed, 0], order), strict=True))
    off = dict.fromkeys(values, 0.0)
    grid = None if causal or not both else Grid.around(both, largest_score(kernel))
    if grid is None:
        values.update(zip(both, _integrate(kernel, both, [seed, 1], order), strict=True))
    else:
        interpolated, error = grid.interpolate(_integrate(kernel, grid.nodes, [seed, 1], order), both)
        values.update(zip(both, interpolated, strict=True))
        off.update(dict.fromkeys(both, error))
    return values, off


def _pairs(kernel: FloatArray, score_std: float, causal: bool) -> dict[tuple[int, int], RowPair]:
    """Return the parameters of each pair's integral, rounded to merge equal ones."""
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


def _integrate(kernel: FloatArray, pairs: Sequence[RowPair], key: list[int], order: int = 0) -> FloatArray:
    """Return E[αᵀKα'] for softmax weights α, α' of each pair, or E tr(JKJ'ᵀK), (pairs, REPLICATES)."""
    if not pairs:
        return np.empty((0, REPLICATES))
    rule = _Rule.of(kernel, pairs, order)
    streams = np.random.SeedSequence([*key, len(kernel)]).spawn(REPLICATES)
    moments = np.stack([rule.moments(np.random.default_rng(stream)) for stream in streams])
    if few_directions(kernel, max(pair.var_x for pair in pairs) ** 0.5):
        return np.asarray(moments[:, :, 0, -1].T)
    return np.stack([regress(moments[:, p]) for p in range(len(pairs))])


@dataclasses.dataclass(frozen=True, eq=False)
class _Rule:
    """Integration rule for pairs of rows: points and controls."""

    kernel: FloatArray
    pairs: Sequence[RowPair]
    powers: tuple[float, ...]
    squares: bool
    points: int
    order: int

    @classmethod
    def of(cls, kernel: FloatArray, pairs: Sequence[RowPair], order: int) -> _Rule:
        """Return a rule whose cost is a second or two for any number of pairs."""
        s = len(kernel)
        largest = max(pair.var_x for pair in pairs) ** 0.5 * largest_score(kernel)
        powers = tuple(power / max(1.0, largest) for power in _POWERS)
        squares = sum((pair.seen_u * pair.seen_x) ** 2 for pair in pairs) * 6 <= _PRODUCTS
        cost = _rows(pairs) * s * (60 + 0.7 * s) + len(pairs) * (800 + 4 * s)
        wanted = _COST / (REPLICATES * cost)
        return cls(kernel, pairs, powers, squares, power_of_two(wanted, _FEWEST, _MOST), order)

    @functools.cached_property
    def kernel_root(self) -> FloatArray:
        """Root F of the kernel, with F Fᵀ = K."""
        return psd_root(self.kernel)

    @functools.cached_property
    def squared_root(self) -> FloatArray:
        """Root F of the entrywise squared kernel, with F Fᵀ = K∘K."""
        return psd_root(self.kernel**2)

    @kept
    def root(self, seen: int) -> FloatArray:
        """Return the factor from normals to a row of variance one, centred over visible positions: (seen, r)."""
        s = len(self.kernel)
        if all(pair.seen_u == pair.seen_x == s for pair in self.pairs):
            # Centring removes one direction. The largest directions come first.
            return psd_root(centred(self.kernel)) if s > 1 else np.zeros((1, 0))
        root = self.kernel_root[:seen]
        return np.asarray(root - root.mean(axis=0))

    def moments(self, rng: np.random.Generator) -> FloatArray:
        """Return mean products of (1, controls, integrand) over one replicate, for each pair."""
        rank = self.root(self.pairs[0].seen_u).shape[1]
        normals = scrambled_normals(2 * rank, self.points, rng) if rank else np.zeros((1, 0))
        step = min(_NEAR, max(1, _BLOCK // (8 * _rows(self.pairs) * len(self.kernel))))
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
            # Use antithetic points, with both signs of the scores.
            values = 0.5 * (self._values(first[0], second[0]) + self._values(first[1], second[1]))
            columns = np.concatenate([np.ones((1, len(normals))), less_known(values[:-1], means), values[-1:]])
            yield columns @ columns.T

    def _row(self, seen: int, var: float, normals: FloatArray) -> tuple[_ScoreRow, _ScoreRow]:
        """Return softmax weights, projections and sums of a row of scores, and of its negative."""
        scores = var**0.5 * (normals @ self.root(seen).T)
        root = self.kernel_root[:seen]
        projected, lengths = scores @ root, np.einsum("ps,ps->p", scores, scores)
        small = np.exp(self.powers[0] * scores)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))

        def of(sign: float, first: FloatArray, weights: FloatArray) -> _ScoreRow:
            # The second power is twice the first, so squares give its exponentials.
            exponentials = (first, first * first)
            total = weights.sum(axis=1)
            weights = weights / total[:, None]
            return _ScoreRow(
                weights,
                weights @ root,
                sign * projected,
                lengths,
                [each @ root for each in exponentials],
                [each.sum(axis=1) for each in exponentials],
            )

        negative = np.exp(scores.min(axis=1, keepdims=True) - scores)
        return of(1.0, small, weights), of(-1.0, 1.0 / small, negative)

    def _values(self, first: _ScoreRow, second: _ScoreRow) -> FloatArray:
        """Return the controls, and as the last row the integrand, (controls + 1, points)."""
        values = [np.einsum("pr,pr->p", first.scores, second.scores), first.lengths, second.lengths]
        for t in range(len(self.powers)):
            b = np.einsum("pr,pr->p", first.exponentials[t], second.exponentials[t])
            d, e = first.sums[t], second.sums[t]
            bd, be = b * d, b * e
            values += [b, d, e, d * e, d * d, e * e, bd, be]
            if self.squares:
                values += [bd * e, bd * d, be * e]
        values.append(self._slopes(first, second) if self.order else np.einsum("pr,pr->p", first.seen, second.seen))
        return np.stack(values)

    def _slopes(self, first: _ScoreRow, second: _ScoreRow) -> FloatArray:
        """Return tr(J K J'ᵀ K) with J = diag(α) - ααᵀ, (points,)."""
        a, b = first.weights, second.weights
        u, x = a.shape[1], b.shape[1]
        both = np.einsum("pr,pr->p", a @ self.squared_root[:u], b @ self.squared_root[:x])
        one = np.einsum("ps,ps->p", a, (second.seen @ self.kernel_root[:u].T) ** 2)
        other = np.einsum("ps,ps->p", b, (first.seen @ self.kernel_root[:x].T) ** 2)
        return np.asarray(both - one - other + np.einsum("pr,pr->p", first.seen, second.seen) ** 2)

    def control_means(self, pair: RowPair) -> FloatArray:
        """Return the exact means of the controls, ordered as in `_values`."""
        of_u, of_x = pair.var_u**0.5 * self.root(pair.seen_u), pair.var_x**0.5 * self.root(pair.seen_x)
        kernel = self.kernel[: pair.seen_u, : pair.seen_x]
        u, x, cross = of_u @ of_u.T, of_x @ of_x.T, pair.corr * (of_u @ of_x.T)
        means = [float((kernel * cross).sum()), float(np.trace(u)), float(np.trace(x))]
        for power in self.powers:
            means += exponential_means(kernel, power**2 * u, power**2 * x, power**2 * cross, self.squares)
        return np.array(means)


@dataclasses.dataclass(frozen=True, eq=False)
class _ScoreRow:
    """A row of scores at the points: weights and kernel-root projections, (points, r), and sums, (points,)."""

    weights: FloatArray
    seen: FloatArray
    scores: FloatArray
    lengths: FloatArray
    exponentials: list[FloatArray]
    sums: list[FloatArray]


def _rows(pairs: Sequence[RowPair]) -> int:
    """Return the number of score rows that the pairs contain."""
    firsts = {pair.first for pair in pairs}
    return len(firsts) + len({pair.second for pair in pairs if not (pair.corr == 1.0 and pair.second[:2] in firsts)})
