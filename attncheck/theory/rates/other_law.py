"""The law of outputs at finite width with weights of another law than the normal."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attncheck._lib.errors import check_draws, check_position, check_whole, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.weights import draw_with_weights
from attncheck.theory.limit import limit
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.limits.mixture import check_chances, check_points, symmetric_quantile
from attncheck.theory.limits.symmetric import SymmetricLaw
from attncheck.theory.rates.gap import standard_error, told_errors
from attncheck.theory.rates.inversion import REACH
from attncheck.theory.rates.weights import OtherWeights, kept_gap
from attncheck.theory.rates.weights_gap import WeightsGap

FloatArray = NDArray[np.float64]

# Entries of the literal matrices of a block of sampled draws.
_BLOCK = 2**23


@dataclasses.dataclass(frozen=True)
class OtherWidthLaw(SymmetricLaw):
    """The law of one neuron of each position of the output at finite width, where all weights follow another law.

    Given all matrices but W^O an output is a sum of independent terms, whose characteristic function is known. What is
    computed is the mean of that over literal draws of the others, less the limit's, and inverted. Every ``…_error`` is
    four standard errors, from independent repetitions. Those of `cdf` and `pdf` are infinite where `FiniteWidthLaw`
    has them infinite, and beyond 12 standard deviations, where the limit stands for the law.

    Parameters
    ----------
    layer : AttentionLayer
        Of width 8 or more, with full heads, keys and values of their own, softmax or sigmoid, and without positions.
    weights : str
        One of `attncheck.simulators.weights.WEIGHT_LAWS`, not "gaussian".
    size : int, optional
        Draws, at least 16; errors hold from 128 on.
    seed : int
    """

    layer: AttentionLayer
    weights: str
    size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size is not None:
            remedy = "pass a number of draws, e.g. size=1024"
            object.__setattr__(self, "size", check_draws("size", self.size, 16, remedy))
        object.__setattr__(self, "seed", check_whole("seed", self.seed, 0, "pass a whole number, e.g. seed=0"))
        OtherWeights(self.layer, 0, self.weights)

    @property
    def limit(self) -> LimitLaw:
        """The law at infinite width, which is that of normal weights."""
        return limit(self.layer)

    def gap(self, position: int = 0) -> WeightsGap:
        """Return the law at a position less its limit."""
        position = check_position("position", position, self.layer.seq_len)
        return kept_gap(OtherWeights(self.layer, position, self.weights), self.size, self.seed)

    def pdf(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the density of y^position at `t`."""
        return np.asarray(self.limit.pdf(t, position) + self.density_difference(t, position))[()]

    def ppf(self, q: ArrayLike, position: int = 0) -> FloatArray:
        """Return the quantiles: the t at which `cdf` is `q`, infinite at 0 and 1; as ``FiniteWidthLaw.ppf``."""
        chances, largest = check_chances(q), float(self.gap(position).limit.variances.max())
        return symmetric_quantile(lambda t: self._upper_tail(t, position), chances, largest)[()]

    def difference(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the cdf at this width less the limit's, in the shape of `t`."""
        t = check_points(t)
        tail = self._replicates(t, position)[0].mean(axis=0)
        return np.asarray(np.where(t < 0, tail, -tail))[()]

    def density_difference(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the density at this width less the limit's, in the shape of `t`."""
        return np.asarray(self._replicates(check_points(t), position)[1].mean(axis=0))[()]

    def cdf_error(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the error of `cdf`, `sf` and `difference`, in the shape of `t`."""
        t, gap = check_points(t), self.gap(position)
        return self._errors(t, gap.limit.upper_tail(np.abs(t)), self._replicates(t, position)[0], position)

    def pdf_error(self, t: ArrayLike, position: int = 0) -> FloatArray:
        """Return the error of `pdf` and `density_difference`, in the shape of `t`."""
        t = check_points(t)
        return self._errors(t, self.limit.pdf(t, position), self._replicates(t, position)[1], position)

    def variance(self, position: int = 0) -> float:
        """Return the variance of y^position."""
        gap = self.gap(position)
        return float(gap.limit.mean() + gap.moments[:, 0].mean())

    def variance_error(self, position: int = 0) -> float:
        """Return the error of `variance`."""
        return standard_error(self.gap(position).moments[:, 0])

    def excess_kurtosis(self, position: int = 0) -> float:
        """Return the excess kurtosis of y^position."""
        return self.gap(position).excess_kurtosis()[0]

    def excess_kurtosis_error(self, position: int = 0) -> float:
        """Return the error of `excess_kurtosis`; infinite for "student5", whose eighth moment is."""
        return math.inf if self.weights == "student5" else self.gap(position).excess_kurtosis()[1]

    def sample(self, size: int, seed: int = 0, coordinates: int = 1) -> FloatArray:
        """Draw outputs with literal matrices, (size, seq_len, coordinates), as ``LimitLaw.sample`` does."""
        size = check_draws("size", size, 1, "pass the number of draws, e.g. size=1000")
        coordinates = check_whole("coordinates", coordinates, 1, "pass how many neurons to draw")
        if coordinates > self.layer.width:
            problem = f"exceeds width={self.layer.width}"
            refuse("coordinates", coordinates, problem, "ask for at most that many neurons")
        rng = np.random.default_rng(check_whole("seed", seed, 0, "pass a whole number, e.g. seed=0"))
        step = max(1, _BLOCK // self.layer.weight_entries)
        parts = [
            draw_with_weights(self.layer, min(step, size - start), coordinates, rng, self.weights).outputs
            for start in range(0, size, step)
        ]
        return np.concatenate(parts)

    @property
    def _what(self) -> str:
        return f"law of {self.layer.describe()} with {self.weights} weights at its width"

    def _upper_tail(self, sizes: FloatArray, position: int) -> FloatArray:
        beyond = self.gap(position).limit.upper_tail(sizes)
        # By symmetry no more than a half.
        return np.asarray(np.clip(beyond + self._replicates(sizes, position)[0].mean(axis=0), 0.0, 0.5))

    def _replicates(self, t: FloatArray, position: int) -> tuple[FloatArray, FloatArray]:
        """Return differences from the limit of P(y > |t|) and of the density, (repetitions, *t.shape)."""
        gap, sizes = self.gap(position), np.abs(t).ravel()
        inside = sizes <= REACH * gap.std
        below, density = gap.at(np.where(inside, sizes, 0.0))
        shape = (len(below), *t.shape)
        return (-below * inside).reshape(shape), (density * inside).reshape(shape)

    def _errors(self, t: FloatArray, limit: FloatArray, replicates: FloatArray, position: int) -> FloatArray:
        gap = self.gap(position)
        errors = told_errors(t, limit, replicates, gap.draws)
        return np.where((np.abs(t) <= REACH * gap.std) | np.isinf(t), errors, np.inf)[()]
