"""g(c) = E[αᵀKα'] for softmax weights α, α' of two score rows u, x with correlation c, from integrals over one row.

The rows have moderate standard deviations σ, σ'. As α is the gradient of log Σ_j e^{u_j}, the derivatives of g are
g⁽ⁿ⁾(c) = (σσ')ⁿ E[⟨κ_{n+1}(α), K^{⊗(n+1)} κ_{n+1}(α')⟩], with cumulants κ of a position drawn by the weights: α,
diag(α) - ααᵀ, and third central moments. At c = 0 rows are independent, and mean cumulants suffice; at c = ±1 rows are
multiples of one row, and the contraction for n = 1, 2 is Σ_jk α_j α'_k M_jkⁿ⁺¹, M the kernel centred by the weights.
Values and two derivatives at -1, 0 and 1 fix a polynomial of degree eight, accurate to about 10⁻⁷ up to standard
deviation one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.kept import kept
from attncheck.layers.kernel import psd_root
from attncheck.theory.limits import chebyshev
from attncheck.theory.limits.controls import RowControls, regress
from attncheck.theory.limits.row_pairs import RowPair, centred, few_directions, largest_score
from attncheck.theory.limits.rows import REPLICATES, power_of_two, scrambled_normals

# Maximum score variance: larger ones need more derivatives.
_LARGEST = 2.0
# Pairs of powers in the controls, for score standard deviations up to one. Larger powers depend on rare points, which
# the spread of replicates may miss. Opposite powers do not help at correlation one.
_EQUAL = ((0.2, 0.2), (0.4, 0.4), (0.6, 0.6))
_OPPOSITE = ((0.2, -0.2), (0.4, -0.4))
# Cost of all points, roughly in nanoseconds, and limits on points per replicate.
_COST, _FEWEST, _MOST = 1.3e9, 2**8, 2**14
# Points per block, and the factor by which third moments use fewer points.
_BLOCK, _SHARE = 2**9, 4
# Factor of the number of points at correlation one, where values are noisiest and cost least.
_FINER = 8
# Maximum entries of third moments; larger ones cost more time than they save.
_THIRD = 2**18
_ORDERS = 3
# Factor from the interpolation error at a few points to its bound.
_SAFETY = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class _RowValues:
    """Softmax weights of a row, (points, s), and their products with the kernel's entrywise powers K, K² and K³."""

    weights: FloatArray
    moments: tuple[FloatArray, FloatArray, FloatArray]


@dataclasses.dataclass(frozen=True, eq=False)
class OneRow:
    """Integrals g(c) and their derivatives for rows with `kernel` (s, s) and pairs of standard deviations in `stds`."""

    kernel: FloatArray
    stds: FloatArray
    std_range: tuple[float, float]

    @classmethod
    def around(cls, kernel: FloatArray, pairs: Sequence[RowPair]) -> OneRow | None:
        """Return a rule for unmasked pairs, or None for large scores, few pairs or long sequences."""
        stds = np.sqrt([pair.var_u for pair in pairs] + [pair.var_x for pair in pairs])
        between = (float(stds.min()), float(stds.max()))
        largest, length = largest_score(kernel), between[1] - between[0]
        if (between[1] * largest) ** 2 > _LARGEST or len(kernel) ** 3 > _THIRD:
            return None
        m = chebyshev.node_count(length, between[1], 3 + int(np.ceil(2 * length * largest)))
        return None if m * (m + 1) > len(pairs) else cls(kernel, chebyshev.nodes(between, m), between)

    def interpolate(self, pairs: Sequence[RowPair], seed: int, order: int = 0) -> tuple[FloatArray, FloatArray]:
        """Return the integrals of pairs, (pairs, REPLICATES), and interpolation errors, (pairs,).

        With ``order=1``, return g'(c)/(σσ') = E[Σ_jk α_j α'_k M_jk²].
        """
        m = len(self.stds)
        coefficients, off = self._interpolant(seed)
        first = np.stack([chebyshev.polynomials(self.std_range, pair.var_u**0.5, m) for pair in pairs])
        second = np.stack([chebyshev.polynomials(self.std_range, pair.var_x**0.5, m) for pair in pairs])
        corrs = np.array([pair.corr for pair in pairs])
        scale = np.array([pair.var_u * pair.var_x for pair in pairs]) ** (-0.5 * order)
        weights, fewer = (scale[:, None] * _hermite(corrs, at_ends, order) for at_ends in (3, 2))
        result = np.einsum("pa,pb,pd,abdr->pr", first, second, weights, coefficients, optimize=True)
        mean = coefficients.mean(axis=-1)
        # The error is estimated by omitting the second derivatives at ±1.
        dropped = np.einsum("pa,pb,pd,abd->p", first, second, weights - fewer, mean, optimize=True)
        between = _SAFETY * np.abs(weights @ off.T).max(axis=1)
        return np.asarray(result), np.abs(dropped) + between

    @kept
    def _interpolant(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return coefficients, (m, m, 9, REPLICATES), and errors between nodes."""
        return self._coefficients(self._integrate(seed)), self._between(seed)

    def _coefficients(self, values: FloatArray) -> FloatArray:
        """Return Chebyshev coefficients in both standard deviations, (m, m, 9, ...)."""
        m = len(self.stds)
        table = np.empty((m, m, *values.shape[1:]))
        for (a, b), each in zip(self._couples, values, strict=True):
            table[a, b] = table[b, a] = each
        to_std = chebyshev.to_coefficients(m)
        return np.asarray(np.einsum("am,bk,mk...->ab...", to_std, to_std, table, optimize=True))

    def _between(self, seed: int) -> FloatArray:
        """Return interpolation errors midway between nodes, (pairs of nodes, 9), in the layout of `_integrate`.

        Interpolated and direct values use the same points, so that their noise cancels.
        """
        m = len(self.stds)
        if m == 1:
            return np.zeros((1, 3 * _ORDERS))
        root = psd_root(self._centred)
        scores = scrambled_normals(root.shape[1], _FEWEST, np.random.default_rng([seed, 3])) @ root.T
        fine = dataclasses.replace(self, stds=chebyshev.between_nodes(self.std_range, m))
        at = np.stack([chebyshev.polynomials(self.std_range, std, m) for std in fine.stds])
        first, second = np.array(fine._couples).T
        coefficients = self._coefficients(self._plain(scores))
        found = np.einsum("pa,pb,abd->pd", at[first], at[second], coefficients, optimize=True)
        return np.asarray(found - fine._plain(scores))

    @functools.cached_property
    def _couples(self) -> list[tuple[int, int]]:
        return list(itertools.combinations_with_replacement(range(len(self.stds)), 2))

    @functools.cached_property
    def _centred(self) -> FloatArray:
        return centred(self.kernel)

    def _points(self) -> int:
        s, m = len(self.kernel), len(self.stds)
        cost = s * (500 + 60 * m + 35 * m * (m + 1)) + m * s**2 * (2 + s / 20 / _SHARE)
        return power_of_two(_COST / (REPLICATES * cost), _FEWEST, _MOST)

    def _integrate(self, seed: int) -> FloatArray:
        """Return g, g' and g'' at correlations -1, 0 and 1 for each pair of nodes, (pairs, 9, REPLICATES)."""
        root, count = psd_root(self._centred), self._points()
        streams = np.random.SeedSequence([seed, 2]).spawn(1 + REPLICATES)
        scores = (
            scrambled_normals(root.shape[1], _FINER * count, np.random.default_rng(each)) @ root.T for each in streams
        )
        pilot = self._cumulants(next(scores)[:count])
        wide = self._controls(_EQUAL + _OPPOSITE, self.kernel @ pilot[0][0])
        narrow = self._controls(_EQUAL)
        found, most, ends = [], [], []
        for each in scores:
            found.append(self._cumulants(each[:count]))
            most.append(self._moments(each[:count], pilot, wide))
            ends.append(self._moments_at_one(each, narrow))
        targets = _regressed(np.stack(most), wide.count).reshape(-1, 8, REPLICATES)
        targets[:, 3:5] = _regressed(np.stack(ends), narrow.count).reshape(-1, 2, REPLICATES)
        values = np.empty((len(self._couples), 3 * _ORDERS, REPLICATES))
        for (a, b), own, into in zip(self._couples, targets, values, strict=True):
            into[:3], into[6:] = own[:3], own[3:6]
            for r, cumulants in enumerate(found):
                errors = [(cumulants[k][n] - pilot[k][n]) for n in (0, 1) for k in (a, b)]
                into[3, r] = own[6, r] + self._contract(errors[0], errors[1])
                into[4, r] = own[7, r] + self._contract(errors[2], errors[3])
                into[5, r] = self._contract(cumulants[a][2], cumulants[b][2])
        return values * self._of_orders[:, :, None]

    def _plain(self, scores: FloatArray) -> FloatArray:
        """Return the same derivatives as `_integrate`, without controls, (pairs of nodes, 9)."""
        cumulants, rows = self._cumulants(scores), self._rows(scores)
        values = np.empty((len(self._couples), 3 * _ORDERS))
        for (a, b), into in zip(self._couples, values, strict=True):
            ends = self._at_ends(rows[a], rows[b]).mean(axis=1)
            into[:3], into[6:] = ends[:3], ends[3:]
            into[3:6] = [self._contract(u, x) for u, x in zip(cumulants[a], cumulants[b], strict=True)]
        return values * self._of_orders

    @functools.cached_property
    def _of_orders(self) -> FloatArray:
        """Factors that turn integrals into derivatives with respect to the correlation, (pairs of nodes, 9)."""
        products = np.array([self.stds[a] * self.stds[b] for a, b in self._couples])
        return np.asarray(products[:, None] ** np.tile(np.arange(_ORDERS), 3))

    def _contract(self, first: FloatArray, second: FloatArray) -> float:
        """Return the inner product of two tensors, with the kernel as the inner product in each index."""
        for _ in range(first.ndim):
            first = np.tensordot(first, self.kernel, axes=(0, 0))
        return float((first * second).sum())

    def _cumulants(self, scores: FloatArray) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
        """Return the mean first, second and third cumulants of the weights at each node.

        Only the first 1/_SHARE of the points enter the third cumulant.
        """
        share, result = len(scores) // _SHARE, []
        for std in self.stds:
            weights = np.concatenate([_softmax(std * scores), _softmax(-std * scores)])
            mean, second = weights.mean(axis=0), weights.T @ weights / len(weights)
            some = np.concatenate([weights[:share], weights[len(scores) : len(scores) + share]])
            result.append((mean, np.diag(mean) - second, _third_cumulant(some)))
        return result

    def _moments(
        self, scores: FloatArray, pilot: Sequence[tuple[FloatArray, ...]], controls: RowControls
    ) -> FloatArray:
        """Return mean products of (1, controls, targets) over one replicate."""
        m, kernel = len(self.stds), self.kernel
        of_means = [kernel @ each[0] for each in pilot]
        of_seconds = [kernel @ each[1] @ kernel for each in pilot]
        total: FloatArray | float = 0.0
        for start in range(0, len(scores), _BLOCK):
            block = scores[start : start + _BLOCK]
            rows = self._rows(block)
            # Use antithetic points, with both signs of the scores.
            lines = [[0.5 * sum(each.weights @ of_means[a] for each in rows[b]) for b in range(m)] for a in range(m)]
            forms = [[0.5 * sum(_form(of_seconds[a], row) for row in rows[b]) for b in range(m)] for a in range(m)]
            columns = [np.ones((1, len(block))), controls.of(block)]
            for a, b in self._couples:
                columns.append(self._at_ends(rows[a], rows[b]))
                columns.append((lines[a][b] + lines[b][a] - pilot[a][0] @ of_means[b])[None])
                columns.append((forms[a][b] + forms[b][a] - (of_seconds[a] * pilot[b][1]).sum())[None])
            of_block = np.concatenate(columns)
            total = total + of_block @ of_block.T
        return np.asarray(total / len(scores))

    def _moments_at_one(self, scores: FloatArray, controls: RowControls) -> FloatArray:
        """Return mean products of (1, controls, values and first derivatives at correlation one)."""
        total: FloatArray | float = 0.0
        for start in range(0, len(scores), _BLOCK):
            block = scores[start : start + _BLOCK]
            values = np.zeros((2 * len(self._couples), len(block)))
            for sign in (1.0, -1.0):
                weights = [_softmax(sign * std * block) for std in self.stds]
                seen = [each @ self.kernel for each in weights]
                twice = [2.0 * _mean(each, of**2) for each, of in zip(weights, seen, strict=True)]
                by_square = [each @ self.kernel**2 for each in weights]
                for at, (a, b) in enumerate(self._couples):
                    value = _mean(weights[a], seen[b])
                    crossed = _mean(weights[a], seen[b] ** 2) + _mean(weights[b], seen[a] ** 2) if a != b else twice[a]
                    values[2 * at] += 0.5 * value
                    values[2 * at + 1] += 0.5 * (_mean(weights[a], by_square[b]) - crossed + value**2)
            columns = np.concatenate([np.ones((1, len(block))), controls.of(block), values])
            total = total + columns @ columns.T
        return np.asarray(total / len(scores))

    def _at_ends(self, first: list[_RowValues], second: list[_RowValues]) -> FloatArray:
        """Return g, g' and g'' at correlations -1 and 1, (6, points), averaged over both signs of the rows."""
        found = []
        for other in (second[::-1], second):
            both = [_derivatives(self.kernel, u, x) for u, x in zip(first, other, strict=True)]
            found.append(0.5 * (both[0] + both[1]))
        return np.concatenate(found)

    def _rows(self, scores: FloatArray) -> list[list[_RowValues]]:
        """Return the values of score rows with both signs, at each standard deviation."""
        return [[self._row(sign * std * scores) for sign in (1.0, -1.0)] for std in self.stds]

    def _row(self, scores: FloatArray) -> _RowValues:
        weights = _softmax(scores)
        kernel = self.kernel
        return _RowValues(weights, (weights @ kernel, weights @ kernel**2, weights @ kernel**3))

    def _controls(self, powers: Sequence[tuple[float, float]], line: FloatArray | None = None) -> RowControls:
        """Return controls with powers scaled to the scores, or no controls for few directions."""
        top, of_one = self.std_range[1], largest_score(self.kernel)
        scale = top / max(1.0, top * of_one)
        few = few_directions(self.kernel, top)
        pairs = () if few else tuple((scale * first, scale * second) for first, second in powers)
        return RowControls(self.kernel, self._centred, pairs, line)


def _regressed(moments: FloatArray, controls: int) -> FloatArray:
    """Return the means of the targets, with controls applied, (targets, REPLICATES)."""
    kept = list(range(1 + controls))
    columns = [[*kept, target] for target in range(len(kept), moments.shape[1])]
    return np.stack([regress(moments[:, each][:, :, each]) for each in columns])


def _mean(weights: FloatArray, of: FloatArray) -> FloatArray:
    """Return weighted means over positions, (points,)."""
    return np.asarray(np.einsum("ps,ps->p", weights, of))


def _softmax(scores: FloatArray) -> FloatArray:
    # Exponentials cannot overflow, since scores are moderate.
    weights = np.exp(scores)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _form(matrix: FloatArray, row: _RowValues) -> FloatArray:
    """Return the inner product of a matrix with diag(α) - ααᵀ."""
    weights = row.weights
    return np.asarray(weights @ np.diagonal(matrix) - np.einsum("ps,ps->p", weights @ matrix, weights))


def _third_cumulant(weights: FloatArray) -> FloatArray:
    """Return the mean third central moment of a position drawn with the weights as probabilities, (s, s, s)."""
    s = weights.shape[1]
    total = np.zeros((s, s * s))
    for start in range(0, len(weights), _BLOCK):
        block = weights[start : start + _BLOCK]
        total += block.T @ (block[:, :, None] * block[:, None, :]).reshape(len(block), s * s)
    result = 2.0 * total.reshape(s, s, s) / len(weights)
    second, at = weights.T @ weights / len(weights), np.arange(s)
    result[at, at, :] -= second
    result[at, :, at] -= second
    result[:, at, at] -= second
    result[at, at, at] += weights.mean(axis=0)
    return np.asarray(result)


def _derivatives(kernel: FloatArray, u: _RowValues, x: _RowValues) -> FloatArray:
    """Return αᵀKα' and Σ α_j α'_k M_jkⁿ, n = 2, 3, where M_jk = K_jk - (Kα')_j - (Kα)_k + αᵀKα', (3, points)."""
    a, b = u.weights, x.weights
    value = _mean(a, x.moments[0])
    q, p = x.moments[0] - value[:, None], u.moments[0] - value[:, None]
    aq, bp = a * q, b * p
    square, qq, pp = _mean(a, x.moments[1]), _mean(aq, q), _mean(bp, p)
    second = square - value**2 - qq - pp
    # M = (K - value) - q - p; q and p have mean 0.
    cubes = _mean(a, x.moments[2]) - 3.0 * value * square + 2.0 * value**3 - _mean(aq * q, q) - _mean(bp * p, p)
    squares_q = _mean(aq, x.moments[1]) - 2.0 * value * qq
    squares_p = _mean(bp, u.moments[1]) - 2.0 * value * pp
    crossed = _mean(aq * q, x.moments[0] - value[:, None]) + _mean(bp * p, u.moments[0] - value[:, None])
    third = cubes - 3.0 * (squares_q + squares_p) + 3.0 * crossed + 6.0 * _mean(aq @ kernel, bp)
    return np.stack([value, second, third])


def _hermite(at: FloatArray, at_ends: int, order: int = 0) -> FloatArray:
    """Return the weights, (points, 9), of derivatives 0, 1, 2 at -1, 0, 1 in the interpolant at the points `at`.

    `at_ends` derivatives are used at ±1. With `order` 1, the weights are those of the interpolant's derivative.
    """
    kept = [3 * place + n for place in range(3) for n in range(_ORDERS if place == 1 else at_ends)]
    powers = np.arange(len(kept))
    conditions = []
    for row in kept:
        place, taken = row // 3 - 1.0, row % 3
        falling = np.prod([powers - k for k in range(taken)], axis=0) if taken else np.ones(len(kept))
        conditions.append(falling * place ** np.maximum(powers - taken, 0))
    weights = np.zeros((len(at), 3 * _ORDERS))
    monomials = at[:, None] ** np.maximum(powers - order, 0)
    weights[:, kept] = (monomials * (powers if order else 1.0)) @ np.linalg.inv(np.array(conditions))
    return weights
