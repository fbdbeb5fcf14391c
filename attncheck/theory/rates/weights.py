"""Outputs of layers with i.i.d. weights of another law than the normal: by literal matrices, W^O integrated out.

Given all matrices but W^O an output is a sum of independent terms, whose characteristic function is the product of
cf(τ c b_α/√n), b^a = Σ_j A^a_ij W^{V,a} x^j. What a draw of it tells beside its mean is taken off by controls whose
means are 0 whatever the law of the weights: inner products less their expectations given what was drawn before, odd
functions of the scores, and the square of the scores' sum of squares, where the fourth cumulant of the law enters.

To first order in 1/n only W^O tells laws apart: all else averages over n or n² weights before it is used.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

import attncheck.layers.nonlinearity as nonlinearity
from attncheck._lib.errors import check_choice, check_whole, refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import map_scores, visible
from attncheck.simulators.layers import matrix_entries
from attncheck.simulators.weights import GAUSSIAN, WEIGHT_LAWS
from attncheck.theory.limit import kept_limit
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.rates.deviation import REPLICATES, Deviation
from attncheck.theory.rates.inversion import frequencies
from attncheck.theory.rates.weights_gap import MOMENTS, WeightsGap

FloatArray = NDArray[np.float64]

# Frequencies in units of 1/std where characteristic functions are not 0 to any digit that is wanted. At width n they
# fall about as τ^{-n}: by 1 + `_BEND`/n² times as far out they are below 1e-6 at all widths.
_HIGHEST, _BEND = 8.0, 128.0
# Characteristic functions of narrower sums fall off too slowly to be inverted.
NARROWEST = 8
# Entries of literal matrices that the draws of the default size take, and bounds on their number.
_ENTRIES, _FEWEST_DRAWS, _MOST_DRAWS = 2**29, 64, 2**16
# Arrays of the size of a matrix while one is drawn.
_LITERAL = 3
# Matrix entries of a block of draws.
_BLOCK = 2**21
# How far a table of a characteristic function reaches, and its knots.
_TABLE, _KNOTS = 40.0, 2**12


def _sinc(x: FloatArray) -> FloatArray:
    return np.asarray(np.sinc((3.0**0.5 / np.pi) * x))


@functools.lru_cache(maxsize=1)
def _truncated_rule() -> tuple[FloatArray, FloatArray]:
    """Return Gauss–Legendre nodes and weights for a standard normal cut at ±2 and rescaled."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    masses = weights * np.exp(-0.5 * (2.0 * nodes) ** 2)
    masses = masses / masses.sum()
    return 2.0 * nodes / math.sqrt(float(masses @ (2.0 * nodes) ** 2)), masses


@functools.lru_cache(maxsize=1)
def _truncated_spline() -> FloatArray:
    """Return coefficients of cubic polynomials of the place between two knots, (4, knots - 1)."""
    nodes, weights = _truncated_rule()
    table = np.linspace(0.0, _TABLE, _KNOTS)
    spline = CubicSpline(table, np.cos(np.multiply.outer(table, nodes)) @ weights)
    return np.asarray(spline.c * table[1] ** np.array([[3], [2], [1], [0]]))


def _truncated(x: FloatArray) -> FloatArray:
    # Knots are evenly spaced: the one below is found by a division.
    place = np.minimum(np.abs(x), _TABLE) * ((_KNOTS - 1) / _TABLE)
    below = np.minimum(place.astype(np.intp), _KNOTS - 2)
    a, b, c, d = (each[below] for each in _truncated_spline())
    t = place - below
    return np.asarray(((a * t + b) * t + c) * t + d)


def _student(x: FloatArray) -> FloatArray:
    scaled = math.sqrt(3.0) * np.abs(x)
    return np.asarray(np.exp(-scaled) * (1.0 + scaled + scaled**2 / 3.0))


# The characteristic function of each law, and its fourth cumulant.
_LAWS: dict[str, tuple[Callable[[FloatArray], FloatArray], float]] = {
    "uniform": (_sinc, -1.2),
    "rademacher": (np.cos, -2.0),
    "truncated normal": (_truncated, float(_truncated_rule()[0] ** 4 @ _truncated_rule()[1]) - 3.0),
    "student5": (_student, 6.0),
}
#: The fourth cumulant of each law of `WEIGHT_LAWS`.
FOURTH_CUMULANTS: dict[str, float] = {GAUSSIAN: 0.0} | {name: fourth for name, (_, fourth) in _LAWS.items()}


@dataclasses.dataclass(frozen=True)
class OtherWeights:
    """One neuron of the output at a position, of a layer whose weights follow another law.

    Parameters
    ----------
    layer : AttentionLayer
        Full heads, each with keys and values of its own, softmax or sigmoid.
    position : int
    weights : str
        One of `attncheck.simulators.weights.WEIGHT_LAWS`, not "gaussian".
    """

    layer: AttentionLayer
    position: int
    weights: str

    def __post_init__(self) -> None:
        layer = self.layer
        check_choice("weights", self.weights, tuple(_LAWS))
        remedy = 'pass a layer without it, or weights="gaussian"'
        if layer.position_std:
            refuse("position_std", layer.position_std, f"is not known with weights={self.weights!r}", remedy)
        if layer.norm:
            refuse("norm", layer.norm, f"is not known with weights={self.weights!r}", remedy)
        if layer.head_dim is not None:
            refuse("head_dim", layer.head_dim, f"is not known with weights={self.weights!r}", remedy)
        if layer.group_size > 1:
            refuse("num_kv_heads", layer.num_kv_heads, f"is not known with weights={self.weights!r}", remedy)
        if layer.attention_map not in ("softmax", "sigmoid"):
            problem = f"with weights={self.weights!r} has a characteristic function that falls off too slowly"
            refuse("attention_map", layer.attention_map, problem, remedy)
        check_whole("width", layer.width, NARROWEST, f"pass a width of {NARROWEST} or more")
        check_literal("width", layer)

    @functools.cached_property
    def _seen(self) -> tuple[int, ...]:
        return tuple(int(j) for j in np.flatnonzero(visible(self.layer)[self.position]))

    @functools.cached_property
    def _mixture(self) -> ScaleMixture:
        return kept_limit(self.layer).mixture(self.position)

    @property
    def std(self) -> float:
        """The standard deviation of the limit."""
        return math.sqrt(self._mixture.mean())

    @property
    def default_size(self) -> int:
        """How many draws some seconds allow."""
        return max(_FEWEST_DRAWS, min(_MOST_DRAWS, _ENTRIES // self.layer.weight_entries))

    @functools.cached_property
    def _limiting(self) -> FloatArray:
        """The limit's characteristic function where it is not 0, and its second and fourth moment."""
        mixture, squares = self._mixture, self._frequencies**2
        cf = np.exp(-0.5 * np.outer(squares, mixture.variances)) @ mixture.weights
        return np.append(cf, [mixture.mean(), 3.0 * (mixture.variance() + mixture.mean() ** 2)])

    @functools.cached_property
    def _frequencies(self) -> FloatArray:
        tau = frequencies(self.std)
        return tau[tau * self.std < _HIGHEST * (1.0 + _BEND / self.layer.width**2)]

    def gap(self, size: int, seeds: list[np.random.SeedSequence]) -> WeightsGap:
        """Return the law at the layer's width less the limit, each repetition from `size` draws."""
        moments = np.stack([self._moments(size, np.random.default_rng(seed)) for seed in seeds])
        controls = moments.shape[1]
        # Coefficients come from the other repetitions, so that they are independent of what they are used on.
        others = (moments.sum(axis=0) - moments) / (len(moments) - 1)
        means = others[:, 0, 1:]
        centred = others[:, 1:controls, 1:] - others[:, 1:controls, :1] * means[:, None, :]
        products, cross = centred[..., : controls - 1], centred[..., controls - 1 :]
        spread = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
        scale = np.where(spread > 1e-12 * spread.max(axis=1, keepdims=True), spread, np.inf)
        ridge = 1e-9 * np.eye(controls - 1)
        solved = np.linalg.solve(products / (scale[:, :, None] * scale[:, None, :]) + ridge, cross / scale[:, :, None])
        coefficients = solved / scale[:, :, None]
        found = moments[:, 0, controls:] - np.einsum("rk,rkt->rt", moments[:, 0, 1:controls], coefficients)
        difference = np.zeros((len(seeds), len(frequencies(self.std))), dtype=np.complex128)
        count = found.shape[1] - MOMENTS
        difference[:, :count] = found[:, :count]
        return WeightsGap(self.std, difference, self._mixture, found[:, count:], size * len(seeds))

    def _moments(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return the means of products of (1, controls) with (1, controls, differences)."""
        total: FloatArray | float = 0.0
        step = max(1, _BLOCK // (len(self._seen) * self.layer.width**2))
        for start in range(0, size, step):
            controls, differences = self._draw(min(step, size - start), rng)
            left = np.concatenate([np.ones((len(controls), 1)), controls], axis=1)
            total = total + left.T @ np.concatenate([left, differences], axis=1)
        return np.asarray(total) / size

    def _draw(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draw all but W^O; return controls, (size, controls), and differences, (size, frequencies + `MOMENTS`)."""
        layer, n, own = self.layer, self.layer.width, self._seen.index(self.position)
        entries, (function, fourth) = WEIGHT_LAWS[self.weights], _LAWS[self.weights]
        hidden, controls = self._hidden(size, rng)
        x = nonlinearity.of_inputs(layer.inputs)(hidden)
        gram = x @ x.swapaxes(-1, -2) / n
        product = np.ones((size, len(self._frequencies)))
        squares, fourths = np.zeros((2, size))
        of_heads = np.zeros((size, 8))
        for _ in range(layer.num_heads):
            keys = (layer.key_std / math.sqrt(n)) * (x @ entries(rng, (size, n, n)))
            queries = (layer.query_std / math.sqrt(n)) * _row(x[:, own], entries(rng, (size, n, n)))
            scores = layer.score_factor / math.sqrt(n) * np.einsum("dja,da->dj", keys, queries)
            attention = map_scores(layer, scores, np.ones(len(self._seen), dtype=bool))
            mixed = np.einsum("dj,djb->db", attention, x)
            projected = (layer.value_std / math.sqrt(n)) * _row(mixed, entries(rng, (size, n, n)))
            of_heads += self._of_head(x, gram, keys, scores, fourth)
            value = (projected**2).mean(axis=1) - layer.value_std**2 * (mixed**2).mean(axis=1)
            of_heads[:, -1] += value
            arguments = (layer.output_std * layer.head_factor / math.sqrt(n)) * projected
            squares += (arguments**2).sum(axis=1)
            fourths += (arguments**4).sum(axis=1)
            for k, tau in enumerate(self._frequencies):
                product[:, k] *= function(tau * arguments).prod(axis=1)
        # Of a sum of independent terms fourth cumulants add up.
        moments = np.stack([squares, 3.0 * squares**2 + fourth * fourths], axis=1)
        return np.concatenate([controls, of_heads], axis=1), np.concatenate([product, moments], axis=1) - self._limiting

    def _hidden(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return W^j h of the seen positions, and their inner products less expectations."""
        layer, n = self.layer, self.layer.width
        entries, rho = WEIGHT_LAWS[self.weights], layer.input_correlation
        h = rng.standard_normal((size, n))
        images = np.zeros((size, len(self._seen), n))
        if rho > 0:
            images += math.sqrt(rho) * _row(h, entries(rng, (size, n, n)))[:, None]
        if rho < 1:
            for k in range(len(self._seen)):
                matrix = entries(rng, (size, n, n))
                images[:, k] += math.sqrt(1.0 - rho) * _row(h, matrix)
        length = (h**2).mean(axis=1)
        own = self._seen.index(self.position)
        squares = (images**2).mean(axis=2) / n
        whole = (images.sum(axis=1) ** 2).mean(axis=1) / n
        m = len(self._seen)
        controls = [
            length - 1.0,
            squares[:, own] - length,
            squares.mean(axis=1) - length,
            whole - m * (1.0 + rho * (m - 1)) * length,
        ]
        return layer.input_std / math.sqrt(n) * images, np.stack(controls, axis=1)

    def _of_head(
        self, x: FloatArray, gram: FloatArray, keys: FloatArray, scores: FloatArray, fourth: float
    ) -> FloatArray:
        """Return controls of one head's keys and scores, (draws, 8), the last of which is left for its values."""
        layer, n, own = self.layer, self.layer.width, self._seen.index(self.position)
        scale = (layer.query_std * layer.score_factor) ** 2
        of_keys = keys @ keys.swapaxes(-1, -2) / n
        expected = layer.key_std**2 * gram
        centred = scores - scores.mean(axis=1, keepdims=True)
        keys_centred = keys - keys.mean(axis=1, keepdims=True)
        covariance = scale * gram[:, own, own][:, None, None] * (keys_centred @ keys_centred.swapaxes(-1, -2) / n)
        squares, trace = (centred**2).sum(axis=1), np.trace(covariance, axis1=1, axis2=2)
        tails_of_law = fourth * scale**2 * (x[:, own] ** 4).mean(axis=1) / n
        tails_of_law *= ((keys_centred**2).sum(axis=1) ** 2).mean(axis=1) / n
        whole = scale * gram[:, own, own] * of_keys.sum(axis=(1, 2))
        return np.stack(
            [
                np.trace(of_keys - expected, axis1=1, axis2=2),
                (of_keys - expected).sum(axis=(1, 2)),
                squares - trace,
                scores.sum(axis=1) ** 2 - whole,
                (centred**3).sum(axis=1),
                np.einsum("dj,djk->d", scores, gram),
                squares**2 - trace**2 - 2.0 * (covariance**2).sum(axis=(1, 2)) - tails_of_law,
                np.zeros(len(scores)),
            ],
            axis=1,
        )

    def leading(self, gaussian: Deviation) -> WeightsGap:
        """Return the first term of the expansion in 1/n: that of normal weights, and what W^O adds to it.

        Parameters
        ----------
        gaussian : Deviation
            Of the same number with normal weights.
        """
        squares = frequencies(self.std) ** 2
        rows = gaussian.expansion @ np.exp(-0.5 * np.outer(gaussian.cells.variances, squares))
        head = kept_limit(self.layer).head_mixture(self.position)
        # E Σ_a u_a², by the variance that the output has where a head's share is u_a.
        size = float(head.weights @ head.variances**2)
        one = condense(head.variances, head.weights * head.variances**2)
        where = one if self.layer.num_heads == 1 else one.plus(head.times(self.layer.num_heads - 1))
        fourth = 3.0 * _LAWS[self.weights][1] / self.layer.width * self.layer.num_heads * size
        added = where.weights @ np.exp(-0.5 * np.outer(where.variances, squares))
        difference = (rows + fourth / 24.0 * squares**2 * added).astype(np.complex128)
        return WeightsGap(self.std, difference, self._mixture, np.full((len(rows), MOMENTS), np.nan), 0)


@functools.lru_cache(maxsize=32)
def kept_gap(output: OtherWeights, size: int | None, seed: int) -> WeightsGap:
    """Return the gap from draws of this number, over all repetitions, once for all that is asked of it."""
    each = max(2, -(-(output.default_size if size is None else size) // REPLICATES))
    return output.gap(each, np.random.SeedSequence(seed).spawn(REPLICATES))


def check_literal(field: str, layer: AttentionLayer) -> None:
    """Refuse a layer whose literal matrices, of one draw, take more than `attncheck._lib.memory.DEFAULT_MEMORY`."""
    remedy = f'pass a smaller width, or weights="{GAUSSIAN}"'
    check_memory(field, layer.width, "literal matrices", _LITERAL * matrix_entries(layer), remedy)


def _row(vectors: FloatArray, matrices: FloatArray) -> FloatArray:
    """Return vectors times matrices, one of each for every draw."""
    return np.asarray((vectors[:, None, :] @ matrices)[:, 0])
