"""Outputs and scores of layers with non-normal i.i.d. weights, with one matrix integrated out.

Given all matrices except W^O, an output is a sum of independent terms; given all except W^Q, so is a score. Both laws
are a `SumDeviation` over draws of the other matrices.

Control variates have mean 0 under any law: inner products minus their conditional expectations, odd functions of
scores, and the squared sum of squares of scores, corrected by the fourth cumulant of W^Q. Half of the draws use a
common input vector h of larger norm, with weights that correct for it, to reach the tails.

To first order in 1/n only the laws of W^O and, under a nonlinear φ, of the W^i matter.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

import attncheck.layers.nonlinearity as nonlinearity
from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import position_covariance, psd_root
from attncheck.layers.norm import normalised
from attncheck.simulators.layers import matrix_entries
from attncheck.simulators.weights import WEIGHT_LAWS, WeightLaws
from attncheck.theory.limit import kept_limit
from attncheck.theory.limits.mixture import ScaleMixture, condense
from attncheck.theory.rates.deviation import REPLICATES, Cells, Deviation, first_order
from attncheck.theory.rates.entries import ENTRY_LAWS, FOURTH_CUMULANTS
from attncheck.theory.rates.gap import Gap
from attncheck.theory.rates.marginal import OutputEntry, ScoreEntry, restored, vanishes
from attncheck.theory.rates.sums import BINS, SumDeviation, bins_of, frequencies

# Maximum matrix entries, and maximum terms times frequencies, in all default draws; bounds on the number of draws.
_ENTRIES, _TERMS, _FEWEST_DRAWS, _MOST_DRAWS = 2**28, 2**28, 64, 2**16
# Arrays in memory per matrix while it is drawn.
_LITERAL = 3
# Matrix entries per block.
_BLOCK = 2**21
# Range of the variances, relative to the limit's mean.
_SMALLEST, _LARGEST = math.exp(-48.0), math.exp(12.0)
# Increase of the mean of ‖h‖², in standard deviations of ‖h‖², in the half of the draws with a longer h.
_LONGER = 1.0
# Rows of scores made from one matrix W^Q by flipping signs at random.
_SIGNS = 4
# Maximum probability of atoms, estimated from the highest frequencies.
_MOST_CUT = 0.02
# Relative step of a second difference.
_DIFFERENCE = 0.05


@dataclasses.dataclass(frozen=True)
class SumEntry:
    """Output or score of a layer whose weights have other laws than the normal, without biases."""

    marginal: OutputEntry | ScoreEntry
    weights: WeightLaws

    def __post_init__(self) -> None:
        if self.weights.biases:
            refuse(
                "weights",
                str(self.weights),
                "has biases, which laws at finite width do not support",
                "leave them out",
            )
        check_literal("width", self.layer)

    @property
    def layer(self) -> AttentionLayer:
        """The layer."""
        return self.marginal.layer

    @functools.cached_property
    def limit(self) -> ScaleMixture:
        """Law at infinite width."""
        return self.marginal.law()

    @functools.cached_property
    def _seen(self) -> tuple[int, ...]:
        return self.marginal.fluctuations(infinite=True).positions

    @property
    def _of_scores(self) -> bool:
        return isinstance(self.marginal, ScoreEntry)

    @property
    def _last(self) -> str:
        """Law of the entries of the matrix that is integrated out."""
        return self.weights.query if self._of_scores else self.weights.output

    @property
    def _terms(self) -> int:
        return self.layer.head_width * (self.layer.width if self._of_scores else self.layer.num_heads)

    @functools.cached_property
    def _frequencies(self) -> FloatArray:
        return frequencies(self._terms) if ENTRY_LAWS[self._last][1] else np.zeros(0)

    @property
    def default_size(self) -> int:
        """Number of draws that take a few seconds."""
        terms = max(1, self._terms * len(self._frequencies) * (1 if self._of_scores else _SIGNS))
        return max(_FEWEST_DRAWS, min(_MOST_DRAWS, _ENTRIES // self.layer.weight_entries, _TERMS // terms))

    def deviation(self, size: int, seeds: list[np.random.SeedSequence]) -> SumDeviation:
        """Return the law minus the limit, with `size` draws per repetition."""
        unit = self.limit.mean()
        cells = Cells.over(unit * _SMALLEST, unit * _LARGEST)
        moments = np.stack([self._moments(cells, unit, size, np.random.default_rng(seed)) for seed in seeds])
        found = _controlled(moments)
        end = len(cells.variances)
        limiting = self.limit.weights @ cells.spread(self.limit.variances[:, None])
        limiting[-1] += self.limit.atom
        measures = found[:, :end] - limiting
        corrections = found[:, end:-1].reshape(len(seeds), BINS, -1)
        nowhere = np.full_like(measures, np.nan)
        return SumDeviation(
            cells, measures, nowhere, size * len(seeds), unit, corrections, found[:, -1], self._frequencies
        )

    def _moments(self, cells: Cells, unit: float, size: int, rng: np.random.Generator) -> FloatArray:
        """Return mean products of (1, controls) and (1, controls, cells of v, corrections by bin, fourth cumulant)."""
        total: FloatArray | float = 0.0
        step = max(1, _BLOCK // (len(self._seen) * self.layer.width**2))
        for start in range(0, size, step):
            total = total + self._block(cells, unit, min(step, size - start), rng)
        return np.asarray(total) / size

    def _block(self, cells: Cells, unit: float, size: int, rng: np.random.Generator) -> FloatArray:
        ratios, controls, sizes = self.draw(size, rng)
        function, fourth = ENTRY_LAWS[self._last]
        left = np.column_stack([np.ones(size), ratios - 1.0, ratios[:, None] * controls])
        # Rows of one draw share the draw's controls.
        rows = sizes.shape[1]
        shared = np.repeat(left * (ratios / rows)[:, None], rows, axis=0)
        sizes = sizes.reshape(size * rows, -1)
        variances = (sizes**2).sum(axis=1)
        places = cells.places(variances).T @ shared
        chosen, least = bins_of(variances, unit, rng)
        relative = sizes / np.sqrt(least)[:, None]
        squares = (relative**2).sum(axis=1)
        corrections = np.empty((len(sizes), len(self._frequencies)))
        for k, tau in enumerate(self._frequencies):
            corrections[:, k] = function(tau * relative).prod(axis=1) - np.exp(-0.5 * tau**2 * squares)
        by_bin = np.zeros((left.shape[1], BINS, len(self._frequencies)))
        for k in np.unique(chosen):
            by_bin[:, k] = shared[chosen == k].T @ corrections[chosen == k]
        fourths = fourth * shared.T @ (sizes**4).sum(axis=1)
        asked = [places.T, by_bin.reshape(left.shape[1], -1), fourths[:, None]]
        return np.concatenate([left.T @ left, *asked], axis=1)

    def draw(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Draw all matrices except the one that is integrated out, W^O or W^Q.

        Return importance weights, (size,), controls, (size, controls), and the coefficients of the entries of the
        remaining matrix, (size, rows, terms).
        """
        ratios, x, controls = self._inputs(size, rng)
        marginal = self.marginal
        of_rest = self._score(marginal.column, x, rng) if isinstance(marginal, ScoreEntry) else self._output(x, rng)
        return ratios, np.column_stack([controls, of_rest[0]]), of_rest[1]

    def _inputs(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Draw h and the W^i; return importance weights, visible inputs and controls."""
        layer, n, m = self.layer, self.layer.width, len(self._seen)
        rho = layer.input_correlation
        longer = 1.0 + _LONGER * math.sqrt(2.0 / n)
        h = rng.standard_normal((size, n)) * np.where(rng.random(size) < 0.5, longer**0.5, 1.0)[:, None]
        squares = (h**2).sum(axis=1)
        ratios = 2.0 / (1.0 + np.exp(0.5 * squares * (1.0 - 1.0 / longer) - 0.5 * n * math.log(longer)))
        images = np.zeros((size, m, n))
        if rho > 0:
            images += math.sqrt(rho) * self._image("inputs", h[:, None], n, rng)
        if rho < 1:
            for k in range(m):
                images[:, k : k + 1] += math.sqrt(1.0 - rho) * self._image("inputs", h[:, None], n, rng)
        length, whole = squares / n, (images.sum(axis=1) ** 2).mean(axis=1)
        lengths = (images**2).mean(axis=2)
        controls = [
            length - 1.0,
            lengths[:, self._own] - length,
            lengths.mean(axis=1) - length,
            whole - m * (1.0 + rho * (m - 1)) * length,
        ]
        hidden = layer.input_std * images
        if layer.position_std:
            root = psd_root(position_covariance(layer.inputs)[np.ix_(self._seen, self._seen)])
            hidden += root @ rng.standard_normal((size, root.shape[1], n))
        return ratios, normalised(layer.norm, nonlinearity.of_inputs(layer.inputs)(hidden)), np.stack(controls, axis=1)

    @property
    def _own(self) -> int:
        """Index of the query among the visible positions."""
        marginal = self.marginal
        return self._seen.index(marginal.row if isinstance(marginal, ScoreEntry) else marginal.position)

    def _image(self, matrix: str, vectors: FloatArray, rows: int, rng: np.random.Generator) -> FloatArray:
        """Return W u/√columns, with one W of `rows` rows per draw."""
        columns = vectors.shape[-1]
        entries = WEIGHT_LAWS[getattr(self.weights, matrix)](rng, (len(vectors), columns, rows))
        return np.asarray(columns**-0.5 * (vectors @ entries))

    def _score(self, column: int, x: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return the control of the key's length, and coefficients of W^Q."""
        layer = self.layer
        other = x[:, [self._seen.index(column)]]
        keys = layer.key_std * self._image("key", other, layer.head_width, rng)
        query = layer.query_std * layer.score_factor * x[:, self._own] / math.sqrt(layer.width * layer.head_width)
        off = (keys**2).mean(axis=2) - layer.key_std**2 * (other**2).mean(axis=2)
        return off, (keys[:, 0, :, None] * query[:, None, :]).reshape(len(x), 1, -1)

    def _output(self, x: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return controls, summed over heads, and coefficients of W^O, for scores with random signs of queries."""
        layer, nu, own = self.layer, self.layer.head_width, self._own
        every = np.ones(len(self._seen), dtype=bool)
        controls, sizes = np.zeros((len(x), 8)), []
        for _ in range(layer.kv_heads):
            keys, mixed = layer.key_std * self._image("key", x, nu, rng), []
            for _ in range(layer.group_size):
                query = layer.query_std * self._image("query", x[:, [own]], nu, rng)
                signs = 2.0 * rng.integers(2, size=(len(x), _SIGNS, nu)) - 1.0
                scores = layer.score_factor / math.sqrt(nu) * (query * signs) @ keys.swapaxes(-1, -2)
                mixed.append(layer.map.weights(scores, every) @ x)
                controls[:, :7] += self._of_head(x, keys, scores)
            together = np.concatenate(mixed, axis=1)
            values = layer.value_std * self._image("value", together, nu, rng)
            expected = layer.value_std**2 * (together**2).mean(axis=2)
            controls[:, 7] += ((values**2).mean(axis=2) - expected).sum(axis=1)
            sizes.extend(np.split(values, layer.group_size, axis=1))
        factor = layer.output_std * layer.head_factor / math.sqrt(nu)
        return controls, factor * np.concatenate(sizes, axis=2)

    def _of_head(self, x: FloatArray, keys: FloatArray, scores: FloatArray) -> FloatArray:
        """Return controls of one head, averaged over rows of scores, (draws, 7)."""
        layer, own = self.layer, self._own
        n, nu = layer.width, layer.head_width
        gram = x @ x.swapaxes(-1, -2) / n
        scale = (layer.query_std * layer.score_factor) ** 2 * gram[:, own, own]
        of_keys = keys @ keys.swapaxes(-1, -2) / nu
        off = of_keys - layer.key_std**2 * gram
        centred = scores - scores.mean(axis=2, keepdims=True)
        keys_centred = keys - keys.mean(axis=1, keepdims=True)
        covariance = scale[:, None, None] * (keys_centred @ keys_centred.swapaxes(-1, -2) / nu)
        squares, trace = (centred**2).sum(axis=2), np.trace(covariance, axis1=1, axis2=2)
        tails_of_law = FOURTH_CUMULANTS[self.weights.query] * (layer.query_std * layer.score_factor) ** 4
        of_law = (
            tails_of_law / (n * nu) * (x[:, own] ** 4).mean(axis=1) * ((keys_centred**2).sum(axis=1) ** 2).mean(axis=1)
        )
        return np.stack(
            [
                np.trace(off, axis1=1, axis2=2),
                off.sum(axis=(1, 2)),
                squares.mean(axis=1) - trace,
                (scores.sum(axis=2) ** 2).mean(axis=1) - scale * of_keys.sum(axis=(1, 2)),
                (centred**3).sum(axis=2).mean(axis=1),
                (scores @ gram).sum(axis=2).mean(axis=1),
                (squares**2).mean(axis=1) - trace**2 - 2.0 * (covariance**2).sum(axis=(1, 2)) - of_law,
            ],
            axis=1,
        )

    def leading(self, gaussian: Deviation, seed: int) -> Deviation:
        """Return the first term of the expansion: that of normal weights plus the terms of the W^i and of W^O."""
        added = np.zeros_like(gaussian.expansion)
        fourth = FOURTH_CUMULANTS[self.weights.inputs]
        # The sum is unknown if the term of normal weights is.
        if fourth and not np.isnan(gaussian.expansion).any():
            moved = self.marginal.fluctuations(infinite=False).mean_of_law(fourth)
            added += first_order(self.marginal, gaussian.cells, moved, np.random.SeedSequence(seed))
        if isinstance(self.marginal, OutputEntry):
            added += self._of_outputs(self.marginal.position, gaussian.cells)
        return dataclasses.replace(gaussian, expansion=gaussian.expansion + added)

    def _of_outputs(self, position: int, cells: Cells) -> FloatArray:
        """Return the contribution of the law of W^O to the first term of the expansion, (cells + 1,)."""
        head = kept_limit(self.layer).head_mixture(position)
        # The average below is E Σ_a u_a² g(v), with u_a the share of head a in v.
        size = float(head.weights @ head.variances**2)
        one = condense(head.variances, head.weights * head.variances**2)
        where = one if self.layer.num_heads == 1 else one.plus(head.times(self.layer.num_heads - 1))
        fourth = 3.0 * FOURTH_CUMULANTS[self._last] / self.layer.head_width * self.layer.num_heads * size
        # A fourth cumulant κ adds κτ⁴/24 · e^{-τ²v/2} to e^{-τ²v/2}: κ/6 times a second derivative in v.
        step = _DIFFERENCE * where.variances
        ahead, at, behind = (cells.spread((where.variances + k * step)[:, None]) for k in (1, 0, -1))
        return np.asarray(fourth / 6.0 * (where.weights / step**2) @ (ahead - 2.0 * at + behind))


@functools.lru_cache(maxsize=32)
def kept_mde(entry: SumEntry, size: int | None, seed: int) -> Gap:
    """Return the cached law of the output or score, and its limit."""
    if vanishes(entry.layer, "scores" if isinstance(entry.marginal, ScoreEntry) else "outputs"):
        whole = dataclasses.replace(entry.marginal, layer=restored(entry.layer))
        return kept_mde(SumEntry(whole, entry.weights), size, seed).scaled(entry.layer.score_factor**2)
    each = max(2, -(-(entry.default_size if size is None else size) // REPLICATES))
    found = entry.deviation(each, np.random.SeedSequence(seed).spawn(REPLICATES))
    if found.cut > _MOST_CUT:
        problem = f"with weights {entry.weights} gives a law with atoms, of total probability {found.cut:.2g}"
        refuse("width", entry.layer.width, problem, "pass a larger width, or weights of a law with a density")
    return Gap(entry.limit, found)


def check_literal(field: str, layer: AttentionLayer) -> None:
    """Raise `InputError` if one draw of literal matrices exceeds `attncheck._lib.memory.DEFAULT_MEMORY`."""
    remedy = 'pass a smaller width, or weights="gaussian"'
    check_memory(field, layer.width, "literal matrices", _LITERAL * matrix_entries(layer), remedy)


def _controlled(moments: FloatArray) -> FloatArray:
    """Return the means of the targets with controls applied, from means of products."""
    controls = moments.shape[1]
    # Coefficients come from the other repetitions, to be independent of this one.
    others = (moments.sum(axis=0) - moments) / (len(moments) - 1)
    means = others[:, 0, 1:]
    centred = others[:, 1:, 1:] - others[:, 1:, :1] * means[:, None, :]
    products, cross = centred[..., : controls - 1], centred[..., controls - 1 :]
    spread = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
    scale = np.where(spread > 1e-12 * spread.max(axis=1, keepdims=True), spread, np.inf)[..., None]
    ridge = 1e-9 * np.eye(controls - 1)
    coefficients = np.linalg.solve(products / (scale * scale.swapaxes(-1, -2)) + ridge, cross / scale) / scale
    return np.asarray(moments[:, 0, controls:] - np.einsum("rk,rkt->rt", moments[:, 0, 1:controls], coefficients))
