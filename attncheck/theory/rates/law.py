"""Law of outputs at finite width."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_draws, check_integer, check_position, refuse
from attncheck._lib.kept import kept
from attncheck._lib.memory import check_memory
from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.parts import refuse_parts
from attncheck.layers.stack import AttentionStack
from attncheck.simulators.blocks import check_coordinates
from attncheck.simulators.collapsed import input_entries
from attncheck.simulators.finite import collapsed_layer
from attncheck.theory.limit import cached_limit, limit
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.limits.mixture import check_chances, check_points, symmetric_quantile
from attncheck.theory.limits.rows import MISSED, score_std
from attncheck.theory.limits.symmetric import SymmetricLaw
from attncheck.theory.rates.deviation import deviation, retained_entries
from attncheck.theory.rates.gap import Gap, error_bounds, standard_error, widening
from attncheck.theory.rates.marginal import FixedHeads, Marginal, OutputEntry, ScoreEntry, restored, vanishes

# The default number of draws is such that the inputs X of all draws together have at most `_ENTRIES` entries, but it is
# at least `_FEWEST_DRAWS` and at most `_MOST_DRAWS`.
_ENTRIES, _FEWEST_DRAWS, _MOST_DRAWS = 2**27, 64, 4096
# Errors of moments are unknown if width or head_dim is below the first number for bounded attention weights, and below
# the second for unbounded ones.
_NARROW, _NARROW_UNBOUNDED = 8, 16


def default_size(layer: AttentionLayer) -> int:
    """Return the default number of draws, fewer for wide layers."""
    affordable = _ENTRIES // (layer.seq_len * layer.width)
    return max(_FEWEST_DRAWS, min(_MOST_DRAWS, affordable))


def finite_width_law(layer: AttentionLayer, size: int | None = None, seed: int = 0) -> FiniteWidthLaw:
    """Return the law of a layer's outputs at its own width.

    Parameters
    ----------
    layer : AttentionLayer
    size : int, optional
        Number of draws, at least 16; by default a few seconds' worth. Below 512 errors are widened.
    seed : int
        The same seed gives the same digits.

    Returns
    -------
    FiniteWidthLaw

    Raises
    ------
    InputError
        If an argument is invalid, or the layer ties queries to keys, normalises queries and keys, or has rotary
        positions or a position bias. Methods raise it if one draw of the inputs takes more than 512 MiB.

    Examples
    --------
    >>> layer = AttentionLayer(width=64)
    >>> law = finite_width_law(layer, size=256)
    >>> print(f"{law.sf(1.0):.3f}, in the limit {limit(layer).sf(1.0):.3f}")
    0.056, in the limit 0.055
    """
    return FiniteWidthLaw(check_separate(layer), size, seed)


@dataclasses.dataclass(frozen=True)
class FiniteWidthLaw(SymmetricLaw):
    """Law of one neuron of the output at finite width, with the methods of `LimitLaw`.

    The law is a scale mixture of normals: given inputs, scores and values, y is normal. Its difference from the limit
    is estimated from draws of the conditional variance. The same normals give the scores of both laws, and control
    variates of known mean reduce the noise. Every ``…_error`` is four standard errors, from eight repetitions; about
    2% of actual errors exceed it, because residuals have heavy tails. It is infinite where too few draws contribute
    (see `cdf_error` and `excess_kurtosis_error`).

    With scores divided by n and a linear or relu map, the limit is 0. The law is then computed for √ν y, where ν is n
    or head_dim: √ν y is the output of the same layer with scores divided by √n.

    Parameters
    ----------
    layer, size, seed
        As for `finite_width_law`.
    """

    layer: AttentionLayer
    size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size is not None:
            remedy = "pass a number of draws, e.g. size=1024"
            object.__setattr__(self, "size", check_draws("size", self.size, 16, remedy))
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, "pass a whole number, e.g. seed=0"))

    @property
    def limit(self) -> LimitLaw:
        """The law at infinite width."""
        return limit(self.layer)

    def pdf(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the density of y^position at `t`, without the atom at 0."""
        t = check_points(t)
        return np.asarray(self._base(t, position) + self._replicates(t, position, "density").mean(axis=0))[()]

    def ppf(self, q: ArrayLike, position: int = 0) -> FloatArray:
        """Return the quantiles: the t at which `cdf` is `q`, 0 where it jumps over `q`.

        Where `cdf_error` is infinite, `cdf` may cross `q` several times; the result is one of these points.

        Parameters
        ----------
        q : array_like
            Probabilities.
        position : int

        Returns
        -------
        ndarray, in the shape of `q`

        Raises
        ------
        InputError
            If an entry of `q` is not a probability, or the position does not exist.

        Examples
        --------
        >>> law = finite_width_law(AttentionLayer(width=64), size=256)
        >>> law.cdf(law.ppf([0.025, 0.5])).round(12).tolist(), law.ppf(1.0)
        ([0.025, 0.5], np.float64(inf))
        """
        chances, gap = check_chances(q), self.gap(position)
        largest = max(gap.limit.variances.max(initial=0.0), gap.deviation.cells.variances.max())
        return symmetric_quantile(lambda t: self._upper_tail(t, position), chances, float(largest))[()]

    def difference(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the distribution function of y^position at this width minus that of the limit, at `t`."""
        t = check_points(t)
        tail = self._replicates(t, position, "upper_tail").mean(axis=0)
        if vanishes(self.layer):
            tail = tail + self.gap(position).limit.upper_tail(np.abs(t))
        return np.asarray(np.where(t < 0, tail, -tail))[()]

    def density_difference(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the density of y^position at this width minus that of the limit, at `t`."""
        t = check_points(t)
        if vanishes(self.layer):
            return self.pdf(t, position)
        return np.asarray(self._replicates(t, position, "density").mean(axis=0))[()]

    def cdf_error(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the error of `cdf` and `sf`.

        The error is infinite where the tail beyond ±t differs from the limit's by more than a factor √(draws/20), 14
        for 4096 draws: fewer than twenty draws then determine the tail.
        """
        t = check_points(t)
        gap = self.gap(position)
        limit, replicates = gap.limit.upper_tail(np.abs(t)), self._replicates(t, position, "upper_tail")
        of_limit = self._limit_at_scale.cdf_error(t / self._scale, position)
        of_atom = np.where(np.isinf(t), 0.0, 0.5 * self._missed(position))
        return np.hypot(np.hypot(error_bounds(t, limit, replicates, gap.deviation.draws), of_limit), of_atom)[()]

    def pdf_error(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the error of `pdf`; infinite where `cdf_error` is."""
        t = check_points(t)
        replicates, draws = self._replicates(t, position, "density"), self.gap(position).deviation.draws
        errors = error_bounds(t, self._base(t, position), replicates, draws)
        return np.hypot(errors, self._limit_at_scale.pdf_error(t / self._scale, position) / self._scale)

    def atom(self, position: int = 0) -> float:
        """Return P(y^position = 0), from 0 to 1."""
        gap = self.gap(position)
        return min(max(float(gap.limit.atom + gap.deviation.atom().mean()), 0.0), 1.0)

    def atom_error(self, position: int = 0) -> float:
        """Return the error of `atom`; it allows for outputs 0 that are too rare to occur in the draws."""
        of_draws = self._of_draws(self.gap(position).deviation.atom(), position)
        return math.hypot(of_draws, self._missed(position), self._limit_at_scale.atom_error(position))

    def variance(self, position: int = 0) -> float:
        """Return the variance of y^position, E v, at least 0."""
        return max(float(self._moments(position)[0].mean()), 0.0)

    def variance_error(self, position: int = 0) -> float:
        """Return the error of `variance`; infinite in the same cases as `excess_kurtosis_error`."""
        if self._narrow:
            return math.inf
        of_limit = self._scale**2 * self._limit_at_scale.variance_error(position)
        return math.hypot(self._of_draws(self.gap(position).deviation.moment(1), position), of_limit)

    def excess_kurtosis(self, position: int = 0) -> float:
        """Return the excess kurtosis of y^position, 3 Var(v)/E[v]², or 0 if y is always 0."""
        first, second = self._moments(position)
        mean = float(first.mean())
        return 3.0 * (float(second.mean()) / mean**2 - 1.0) if mean > 0 else 0.0

    def excess_kurtosis_error(self, position: int = 0) -> float:
        """Return the error of `excess_kurtosis`; infinite if the conditional variance is too heavy-tailed.

        This is so if width or head_dim is below 8 (16 for linear and ReLU attention).
        """
        if self._narrow:
            return math.inf
        first, second = self._moments(position)
        mean = first.mean()
        if mean <= 0:
            return 0.0
        linear = 3.0 * (second / mean**2 - 2.0 * second.mean() * first / mean**3)
        return math.hypot(self._of_draws(linear, position), self._limit_at_scale.excess_kurtosis_error(position))

    def _missed(self, position: int) -> float:
        """Return an upper bound on the probability that an output is 0, which holds if no draw contains an output 0.

        With relu inputs, the output of a position is 0 only if its input is, which has probability 2^-width. With other
        inputs, the bound is 0.
        """
        if self.layer.activation != "relu":
            return 0.0
        return min(2.0**-self.layer.width, MISSED / self.gap(position).deviation.draws)

    @property
    def _narrow(self) -> bool:
        bounded = self.layer.map.traits.bounded
        return min(self.layer.width, self.layer.head_width) < (_NARROW if bounded else _NARROW_UNBOUNDED)

    def sample(self, size: int, seed: int = 0, coordinates: int = 1) -> FloatArray:
        """Draw outputs, (size, seq_len, coordinates), with the method "collapsed" of `attncheck.simulate`."""
        size = check_draws("size", size, 1, "pass the number of draws, e.g. size=1000")
        coordinates = check_integer("coordinates", coordinates, 1, "pass how many neurons to draw")
        check_coordinates(coordinates, self.layer.width)
        return collapsed_layer(self.layer, coordinates).take(size, seed).outputs

    def gap(self, position: int = 0) -> Gap:
        """Return the laws of the output at a position, at finite width and in the limit."""
        return self._gap(check_position("position", position, self.layer.seq_len))

    @kept
    def _gap(self, position: int) -> Gap:
        return gap_of(OutputEntry(self.layer, position), self.size, self.seed, False)

    def _moments(self, position: int) -> tuple[FloatArray, FloatArray]:
        """Return E v and E v² of the conditional variance v, from each repetition."""
        gap = self.gap(position)
        second = gap.limit.variance() + gap.limit.mean() ** 2
        return gap.limit.mean() + gap.deviation.moment(1), second + gap.deviation.moment(2)

    def _base(self, t: FloatArray, position: int) -> FloatArray:
        """Return the density at t of the limit.

        If the limit is 0, return the density of `_scale` times the limit of the outputs divided by `_scale`.
        """
        return self._limit_at_scale.pdf(t / self._scale, position) / self._scale

    @property
    def _scale(self) -> float:
        """Factor by which outputs are divided if their limit is 0, else 1."""
        return self.layer.score_factor if vanishes(self.layer) else 1.0

    @property
    def _limit_at_scale(self) -> LimitLaw:
        """Limit of the outputs divided by their scale."""
        return cached_limit(restored(self.layer) if vanishes(self.layer) else self.layer)

    @property
    def _what(self) -> str:
        return f"law of {self.layer.describe()} at its width"

    def _upper_tail(self, sizes: FloatArray, position: int) -> FloatArray:
        beyond = self.gap(position).limit.upper_tail(sizes)
        # By symmetry the upper tail is at most one half.
        return np.asarray(np.clip(beyond + self._replicates(sizes, position, "upper_tail").mean(axis=0), 0.0, 0.5))

    def _replicates(self, t: FloatArray, position: int, method: str) -> FloatArray:
        """Return the difference from the limit at ±t, from each repetition, (repetitions, *t.shape).

        `method` is the name of the method of `Deviation` that computes it, such as "density".
        """
        replicates: FloatArray = getattr(self.gap(position).deviation, method)(np.abs(t).ravel())
        return replicates.reshape(len(replicates), *t.shape)

    def _of_draws(self, replicates: FloatArray, position: int) -> float:
        """Return the error of the mean of `replicates` over repetitions, widened if there are few draws."""
        return widening(self.gap(position).deviation.draws) * standard_error(replicates)


@dataclasses.dataclass(frozen=True)
class Distance:
    """Distance between a law at finite width and its limit.

    Attributes
    ----------
    metric : str
    value : float
    error : float
        Four standard errors.
    leading, leading_error : float
        First term of the distance's expansion in 1/n, computed without draws, and its error. NaN if unknown: for
        outputs of ReLU attention to several positions, for outputs of a user's map, and for more than 27 visible
        positions.
    width : float
        Infinite if this is the distance that remains at a fixed head_dim.
    draws : int
    """

    metric: str
    value: float
    error: float
    leading: float
    leading_error: float
    width: float
    draws: int

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4g} ± {self.error:.2g} at width {self.width:g}"


def check_inputs(field: str, layer: AttentionLayer) -> None:
    """Raise `InputError` if one draw of a layer's inputs exceeds `attncheck._lib.memory.DEFAULT_MEMORY`."""
    remedy = "pass a smaller width, or a shorter sequence"
    check_memory(field, layer.width, f"one draw of {layer.seq_len} inputs", input_entries(layer), remedy)


@functools.lru_cache(maxsize=32)
def gap_of(marginal: Marginal, size: int | None, seed: int, infinite: bool) -> Gap:
    """Return the cached law and limit of an output or score, both rescaled if the limit is 0."""
    layer = marginal.layer
    if not infinite:
        check_inputs("width", layer)
    of = "scores" if isinstance(marginal, ScoreEntry) else "outputs"
    if vanishes(layer, of) and not isinstance(marginal, FixedHeads):
        rescaled = dataclasses.replace(marginal, layer=restored(layer))
        return gap_of(rescaled, size, seed, infinite).scaled(layer.score_factor**2)
    if size is not None:
        check_memory("size", size, "the record of the draws", retained_entries(marginal, size, infinite), "pass fewer")
    draws = default_size(layer) if size is None else size
    return Gap(marginal.law(), deviation(marginal, draws, np.random.SeedSequence(seed), infinite=infinite))


def check_separate(layer: Any) -> AttentionLayer:
    """Return the layer if its scores are normal given the keys, as the expansion assumes, or raise `InputError`."""
    if isinstance(layer, AttentionStack):
        remedy = "compare attncheck.simulate with attncheck.limit"
        refuse("layer", layer, "is a stack, for which the limit is only conjectured", remedy)
    checked = check_layer(layer)
    if checked.tied_query_key:
        remedy = "compare attncheck.simulate with attncheck.limit, or leave it out"
        refuse("tied_query_key", True, "makes scores that are not normal given the keys", remedy)
    refuse_parts(checked, "finite-width law")
    score_std(checked)  # refuses scores that grow with the width
    return checked
