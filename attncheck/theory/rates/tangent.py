"""Difference between the law of a tangent kernel entry at a width and its limit.

Given everything except the second neuron's row of W^O, an entry between neurons is N(0, S). An entry of one neuron is
b + |z|² q(z/|z|) with the normals z of its row of W^O. Conditional distribution functions F are therefore smooth and
known. The width enters through deviations δ of Gram matrices: F(δ) - F(0) is noise of order n^{-1/2} around a mean of
order 1/n. The derivative along δ, of mean 0, is the control variate.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_draws, check_position, check_whole, refuse
from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.attention_map import attention_weights, weight_slopes
from attncheck.layers.norm import normalised_with_ones
from attncheck.layers.parts import refuse_parts
from attncheck.simulators.linalg import bartlett, lower_root
from attncheck.simulators.tangent import Grams, kernel_entries, kernel_of, value_part
from attncheck.theory.limits.rows import error_of_mean
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.drivers import Drivers, Fluctuations
from attncheck.theory.rates.gap import largest, standard_error
from attncheck.theory.rates.law import check_inputs

# Number of quantiles of the limit at which laws are compared, and number of draws to find them.
_QUANTILES, _PILOT = 48, 2**13
# Step of finite differences, and the relative curvature above which a change counts as a jump.
_STEP, _BENT = 1e-6, 0.01
# Entries per block, and per block of the pilot.
_BLOCK, _PILOT_BLOCK = 2**22, 2**25
_LEAST_SPREAD = 1e-9


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TangentGap:
    """Law of an entry of the tangent kernel at a width, minus its limit.

    Attributes
    ----------
    points : ndarray, shape (m,)
        Quantiles and atoms of the limit, and the next smaller numbers.
    limits, differences : ndarray, shape (repetitions, m)
        The limit's distribution function, and the distribution function at the width minus the limit's.
    draws : int
        Number of draws in all repetitions together.
    """

    points: FloatArray
    limits: FloatArray
    differences: FloatArray
    draws: int

    def __repr__(self) -> str:
        return f"ks {self.distance:.4g} ± {self.error:.2g} at {len(self.points)} points, from {self.draws:,} draws"

    @property
    def distance(self) -> float:
        """Kolmogorov distance over `points`."""
        return largest(self.differences)[0]

    @property
    def error(self) -> float:
        """Four standard errors of `distance`."""
        return standard_error(largest(self.differences)[1])

    def cdf(self, *, limit: bool = False) -> tuple[FloatArray, FloatArray]:
        """Return the distribution function at `points`, at the width or in the limit, and its error."""
        each = self.limits if limit else self.limits + self.differences
        return each.mean(axis=0), error_of_mean(each)


def tangent_gap(
    layer: AttentionLayer,
    *,
    between: bool = False,
    positions: tuple[int, int] = (0, 0),
    size: int = 2**14,
    seed: int = 0,
) -> TangentGap:
    """Return the difference between the law of a tangent kernel entry at the layer's width and its limit.

    Parameters
    ----------
    layer : AttentionLayer
        Without rotary positions, with scores divided by √n.
    between : bool
        Whether to take Θ^{01}, between two neurons, instead of Θ^{00}.
    positions : tuple of int
        Positions r, r' of the entry.
    size : int
        Draws, at least 16.
    seed : int
        The same seed gives the same digits.

    Returns
    -------
    TangentGap

    Raises
    ------
    InputError
        If an argument is invalid, or the limit of the entry is a constant.

    Examples
    --------
    >>> found = tangent_gap(AttentionLayer(width=256, attention_map="sigmoid"), between=True, size=2048)
    >>> found.error < found.distance < 0.02, str(found).endswith("at 48 points, from 2,048 draws")
    (True, True)
    """
    check_layer(layer)
    refuse_parts(layer, "tangent kernel")
    if layer.score_scaling != "1/sqrt(n)":
        problem = "has a constant limit, for which a distance of laws is meaningless"
        refuse("layer.score_scaling", layer.score_scaling, problem, 'use score_scaling="1/sqrt(n)"')
    if between and layer.width < 2:
        refuse("between", between, "needs two neurons, but the width is 1", "pass a wider layer")
    if np.shape(positions) != (2,):
        refuse("positions", positions, "is not two positions", "pass e.g. positions=(0, 0)")
    first, second = (check_position("positions", each, layer.seq_len) for each in positions)
    size = check_draws("size", size, 16, "pass a number of draws, e.g. size=16384")
    seed = check_whole("seed", seed, 0, "pass a whole number")
    check_inputs("layer.width", layer)
    return _Entry(layer, bool(between), (first, second)).gap(size, np.random.SeedSequence(seed))


def variance_between(layer: AttentionLayer, grams: Grams, positions: tuple[int, int], share: float) -> FloatArray:
    """Return the variance S of Θ^{01}_{rr'} given all but the second neuron's row O' of W^O, (draws,).

    Θ^{01}_{rr'} = Σ_b (w_b · u'_b + v_b · O'_b) with u'_b = V_b O'_b; `share` is the variance of an entry of O', 0
    in the limit.
    """
    r, q = positions
    shape = (len(grams.scores), layer.kv_heads, layer.group_size)
    A = attention_weights(layer, grams.scores).reshape(*shape, *grams.inputs.shape[1:])
    slopes = weight_slopes(layer, grams.scores, grams.projected[:, :, 0])[:, :, r].reshape(*shape, -1)
    seen, square = np.einsum("njl,nbal->nbaj", grams.inputs, slopes), layer.score_factor**2
    # Contribution of the scores of row r' of each head; the map from values to slopes is symmetric.
    moved = layer.query_std**2 * grams.inputs[:, r, q][:, None, None, None] * (slopes @ grams.keys)
    moved += layer.key_std**2 * np.einsum("nbae,nbaj->nbej", grams.queries[..., r, q], seen)
    flat = square * moved.reshape(grams.projected.shape[0], layer.num_heads, -1)
    w = weight_slopes(layer, grams.scores, flat)[:, :, q].reshape(*shape, -1)
    mixed = layer.value_std**2 * np.einsum("nbaj,njl,nbel->nbae", A[..., r, :], grams.inputs, A[..., q, :])
    first = grams.projected[:, :, 0].reshape(*shape, -1)
    variance = layer.output_std**2 * np.einsum("nbej,nbjl,nbel->n", w, grams.values, w, optimize=True)
    variance += 2.0 * share * np.einsum("nbej,nbae,nbaj->n", w, mixed, first, optimize=True)
    outputs = grams.outputs[..., 0, 0]
    variance += share * np.einsum("nbae,nbac,nbce->n", mixed, outputs, mixed, optimize=True)
    return np.asarray(np.maximum(layer.head_factor**4 * variance, 0.0))


@dataclasses.dataclass(frozen=True, eq=False)
class _Parts:
    """Parts of an entry: b and q of b + |z|² q, or 0 and S between neurons, (draws,) each."""

    rest: FloatArray
    slope: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class _Draws:
    """Centred deviations, and normals `scores` and `along` (z).

    `queries` and `outputs`, (draws, kv_heads, g m, g m) with m = s and 1, are Wishart matrices divided by ν, of the
    part of the queries orthogonal to the keys, and of the part of W^O orthogonal to the values.
    """

    drivers: Drivers
    queries: FloatArray
    outputs: FloatArray
    scores: FloatArray
    along: FloatArray


def _slope(ahead: FloatArray, at: FloatArray, behind: FloatArray) -> FloatArray:
    """Return the derivative along deviations, or 0 where a ReLU slope jumps."""
    change = ahead - behind
    smooth = np.abs(ahead + behind - 2.0 * at) <= _BENT * np.abs(change)
    return np.where(smooth, change / (2.0 * _STEP), 0.0)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One entry of the tangent kernel."""

    layer: AttentionLayer
    between: bool
    positions: tuple[int, int]

    @functools.cached_property
    def _fluctuations(self) -> Fluctuations:
        layer = self.layer
        return Fluctuations(layer, tuple(range(layer.seq_len)), shared=True, groups=layer.kv_heads)

    @property
    def _seen(self) -> int:
        """Number of directions of a head that keys, or values, span."""
        return min(self.layer.seq_len, self.layer.head_width)

    def gap(self, size: int, seed: np.random.SeedSequence) -> TangentGap:
        """Return the law of the entry minus its limit."""
        pilot, *streams = seed.spawn(1 + REPLICATES)
        points = self._points(np.random.default_rng(pilot))
        each = -(-size // REPLICATES)
        entries = 8 * (kernel_entries(self.layer, 1) + 2 * len(points))
        step = max(1, _BLOCK // entries)
        limits, changes, slopes, products, squares = np.zeros((5, REPLICATES, len(points)))
        for k, stream in enumerate(streams):
            rng = np.random.default_rng(stream)
            for start in range(0, each, step):
                limit, change, slope = self._block(min(step, each - start), points, rng)
                limits[k] += limit.sum(axis=0) / each
                changes[k] += change.sum(axis=0) / each
                slopes[k] += slope.sum(axis=0) / each
                products[k] += (change * slope).sum(axis=0)
                squares[k] += (slope**2).sum(axis=0)
        # The coefficient comes from the other repetitions, to be independent; it is near 1 except for jumps and steep
        # laws.
        products, squares = (total.sum(axis=0) - total for total in (products, squares))
        used = np.divide(products, squares, out=np.zeros_like(products), where=squares > 0)
        return TangentGap(points, limits, changes - used * slopes, each * REPLICATES)

    def _points(self, rng: np.random.Generator) -> FloatArray:
        """Return quantiles and atoms of the limit, and the next smaller floats."""
        step = min(_PILOT, max(1, _PILOT_BLOCK // kernel_entries(self.layer, 1)))
        blocks = [self._limit_entries(min(step, _PILOT - start), rng) for start in range(0, _PILOT, step)]
        values = np.concatenate(blocks)
        found = np.quantile(values, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
        if np.ptp(found) <= _LEAST_SPREAD * np.abs(found).max():
            problem = "is an entry with a constant limit, for which a distance of laws is meaningless"
            refuse(
                "positions",
                self.positions,
                problem,
                "pass positions that attend to several positions, or a longer sequence",
            )
        # Values that repeat among draws are atoms: draws of a law with a density do not repeat.
        numbers, counts = np.unique(values, return_counts=True)
        atoms = numbers[counts > 1]
        return np.unique(np.concatenate([found, atoms, np.nextafter(atoms, -np.inf)]))

    def _limit_entries(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw entries in the limit; between neurons, their absolute values, by symmetry."""
        draws = self._draw(count, rng)
        found = self._parts(draws, 0.0, 0.0)
        if self.between:
            return np.asarray(np.sqrt(found.slope) * np.abs(rng.standard_normal(count)))
        return np.asarray(found.rest + (draws.along**2).sum(axis=(1, 2, 3)) * found.slope)

    def _block(
        self, count: int, points: FloatArray, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return conditional distribution functions at `points`, for `count` draws, (count, points) each.

        These are the function F(0) in the limit, the change F(δ) - F(0) due to the deviations δ of the Gram matrices,
        and the derivative of F(t δ) with respect to t at t = 0.
        """
        draws = self._draw(count, rng)
        states = ((0.0, 0.0), (1.0, 1.0), (_STEP, 0.0), (-_STEP, 0.0))
        at, wide, ahead, behind = (self._parts(draws, *state) for state in states)
        limit = self._below(at, points)
        along = _Parts(_slope(ahead.rest, at.rest, behind.rest), _slope(ahead.slope, at.slope, behind.slope))
        return limit, self._below(wide, points) - limit, self._derivative(at, along, points)

    @property
    def _half(self) -> float:
        """Half the degrees of freedom of |z|²."""
        return 0.5 * self.layer.num_heads * self.layer.seq_len

    def _below(self, found: _Parts, points: FloatArray) -> FloatArray:
        """Return P(entry ≤ point) given its parts, (draws, points)."""
        rest, slope = found.rest[:, None], found.slope[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.between:
                below: FloatArray = special.ndtr(points / np.sqrt(slope))
            else:
                of_chi = special.gammainc(self._half, np.maximum((points - rest) / slope, 0.0) * 0.5)
                below = np.where(slope < 0, 1.0 - of_chi, of_chi)
        return np.where(slope == 0, points >= rest, below)

    def _derivative(self, found: _Parts, along: _Parts, points: FloatArray) -> FloatArray:
        """Return the derivative of `_below` along δ, (draws, points).

        Where the law is steep, a factor that does not depend on δ damps the derivative.
        """
        rest, slope = found.rest[:, None], found.slope[:, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.between:
                ratio = points / np.sqrt(slope)
                density = 0.5 * ratio * np.exp(-0.5 * ratio**2) / math.sqrt(2.0 * math.pi)
                return np.where(slope > 0, -density * along.slope[:, None] / slope, 0.0)
            x = (points - rest) / slope
            logs = (self._half - 1.0) * np.log(0.5 * x) - 0.5 * x - special.gammaln(self._half)
            density = np.where(x > 0, 0.5 * np.exp(logs), 0.0)
            moved = -density * (along.rest[:, None] + x * along.slope[:, None]) / np.abs(slope)
            steep = density * (np.abs(rest / slope) + x)
        damped = moved / (1.0 + steep**2 / self.layer.head_width)
        return np.where(np.isfinite(damped), damped, 0.0)

    def _draw(self, count: int, rng: np.random.Generator) -> _Draws:
        layer, fluctuations = self.layer, self._fluctuations
        drivers = fluctuations.draw(count, rng)
        drivers = dataclasses.replace(drivers, gram=drivers.gram - fluctuations.mean.gram)
        s, batch = layer.seq_len, (count, layer.kv_heads)
        return _Draws(
            drivers=drivers,
            queries=self._across(batch, layer.group_size * s, rng),
            outputs=self._across(batch, layer.group_size, rng),
            scores=rng.standard_normal((count, layer.num_heads, s, s)),
            along=rng.standard_normal((count, layer.num_heads, s, 1)),
        )

    def _across(self, batch: tuple[int, ...], rows: int, rng: np.random.Generator) -> FloatArray:
        """Draw centred Wishart matrices of the orthogonal directions, divided by ν."""
        left = self.layer.head_width - self._seen
        if left == 0:
            return np.zeros((*batch, rows, rows))
        factor = bartlett(rng, batch, rows, left)
        return np.asarray((factor @ factor.swapaxes(-1, -2) - left * np.eye(rows)) / self.layer.head_width)

    def _parts(self, draws: _Draws, step: float, width: float) -> _Parts:
        """Return the parts of the entry, with δ multiplied by `step` and terms of order 1/n by `width`."""
        layer, fluctuations = self.layer, self._fluctuations
        s, identity = layer.seq_len, np.eye(layer.seq_len)
        moved = fluctuations.limits.gram + step * draws.drivers.gram + width * fluctuations.mean.gram
        gram = normalised_with_ones(layer.norm, moved)
        root = lower_root(gram)[:, None]
        keys, values = (
            std * root @ lower_root(identity + step * deviation)
            for std, deviation in ((layer.key_std, draws.drivers.keys), (layer.value_std, draws.drivers.values))
        )
        share = width / layer.head_width
        along = self._own_gram(draws.scores[..., : self._seen]) - self._seen * np.eye(layer.group_size * s)
        queries = self._by_heads(np.eye(layer.group_size * s) + step * draws.queries + share * along, s)
        far = np.eye(layer.group_size) * (1.0 - share * self._seen) + step * draws.outputs
        near = share * self._own_gram(draws.along[:, :, : self._seen].swapaxes(-1, -2))
        far, near = (layer.output_std**2 * self._by_heads(each, 1) for each in (far, near))
        of_heads = [np.repeat(each, layer.group_size, axis=1) for each in (keys, values)]
        grams = Grams(
            inputs=gram,
            scores=layer.query_std * root @ draws.scores @ of_heads[0].swapaxes(-1, -2),
            keys=keys @ keys.swapaxes(-1, -2),
            values=values @ values.swapaxes(-1, -2),
            queries=layer.query_std**2 * root[:, :, None, None] @ queries @ root[:, :, None, None].swapaxes(-1, -2),
            outputs=near + far if self.between else near,
            projected=layer.output_std * (of_heads[1] @ draws.along).swapaxes(-1, -2),
        )
        if self.between:
            variance = variance_between(layer, grams, self.positions, layer.output_std**2 * share)
            return _Parts(np.zeros(len(variance)), variance)
        at = (slice(None), 0, 0, *self.positions)
        parts = kernel_of(layer, grams, layer.score_factor**2).parts
        of_values = layer.head_factor**2 * value_part(layer, attention_weights(layer, grams.scores), gram, far)
        quadratic = parts[:, :3].sum(axis=1)[at]
        return _Parts(parts[:, 3][at] + of_values[at], quadratic / (draws.along**2).sum(axis=(1, 2, 3)))

    def _own_gram(self, vectors: FloatArray) -> FloatArray:
        """Return Gram matrices over all heads of a group, (draws, kv_heads, g m, g m)."""
        count, _, m, columns = vectors.shape
        rows = vectors.reshape(count, self.layer.kv_heads, self.layer.group_size * m, columns)
        return np.asarray(rows @ rows.swapaxes(-1, -2))

    def _by_heads(self, gram: FloatArray, m: int) -> FloatArray:
        """Return Gram matrices with axes (draws, kv_heads, g, g, m, m)."""
        g = self.layer.group_size
        return gram.reshape(*gram.shape[:2], g, m, g, m).swapaxes(3, 4)
