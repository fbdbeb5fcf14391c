"""Families with a normal statistic under the null, exactly or in the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, check_number, refuse
from attncheck.evidence.family import (
    DRAWS,
    QUANTILE,
    CondensedData,
    Family,
    Outcome,
    check_count,
    finite_array,
    normal_power,
    unit_array,
)
from attncheck.evidence.summaries import NormalScore


@dataclass(frozen=True)
class Association(Family):
    """Noise that is standard normal under the null, given everything else.

    For any weight independent of the noise under the null, z = ⟨noise, weight⟩/‖weight‖ is exactly standard normal.
    The effect is z/√count: a correlation if the noise has the declared variance, possibly above 1 otherwise. Its
    interval uses the larger of the null's and the sample's spread.

    Parameters
    ----------
    per_draw : int
        Pairs of noise and weight in one draw; for planning.

    Examples
    --------
    >>> family = Association()
    >>> outcome = family.test([1.0, -1.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    >>> round(outcome.effect, 2), round(outcome.p_value, 4)
    (0.5, 0.3173)
    >>> family.size(alternative=0.1, level=5e-4, power=0.99)
    3373
    """

    tail_exact = True

    per_draw: int = 1
    null_effect = 0.0
    _farthest = 1.0

    def __post_init__(self) -> None:
        check_integer("per_draw", self.per_draw, 1, "pass how many pairs one draw holds, e.g. per_draw=64")

    @property
    def comparable(self) -> bool:
        """Whether effects of blocks can be compared with those of blocks of another law."""
        return True

    def plannable(self, effect: float) -> float:
        """Return the effect nearest to `effect` that `power` accepts."""
        return min(1.0, max(-1.0, effect))

    def test(self, noise: ArrayLike, weight: ArrayLike) -> Outcome:
        """Return the outcome for noise and weight of one shape; `count` is the number of nonzero weights."""
        values, weights = finite_array("noise", noise), finite_array("weight", weight)
        if values.shape != weights.shape:
            remedy = f"pass weights of the shape {values.shape} of noise"
            refuse("weight", weights.shape, "must have the shape of noise", remedy)
        largest = float(np.abs(weights).max())
        count = int(np.count_nonzero(weights))
        if count == 0:
            return Outcome(1.0, 0.0, -1.0, 1.0, 0.0, 0)
        weights = weights / largest  # scaled so that squares neither overflow nor vanish
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is refused as infinite
            # BLAS is avoided, because its rounding depends on the number of threads.
            size = np.sqrt(np.sum(weights * weights))
            z = float(finite_array("noise", np.sum(values * weights) / size))
            parts = (values * weights / size)[weights != 0.0]
            spread = math.sqrt(count) * float(finite_array("noise", parts.std()))
        return _normal_outcome(z, count, spread=max(1.0, spread))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to the sums that determine statistic and interval."""
        sums = pair_sums(data[1])
        return CondensedData(lambda noise, weight: sums(np.ravel(noise), np.ravel(weight)), outcome_of_sums).add(*data)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the power for a correlation of `alternative`: a lower bound if the dependence is linear."""
        remedy = "pass a correlation, e.g. 0.05"
        mean = check_number("alternative", alternative, remedy, minimum=-1.0, maximum=1.0)
        count = check_integer("size", size, 1, DRAWS) * self.per_draw
        return normal_power(mean * math.sqrt(count), level)

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, -alternative


@dataclass(frozen=True)
class Smooth(Family):
    """One component of Neyman's smooth test: a shift, scale, skew or tail weight in uniform values.

    The effect is the mean over values u of √(2k + 1) P_k(2u − 1), P_k a Legendre polynomial, which has mean 0 and
    variance 1 under the null. P-values use the normal limit: at `minimum_count` values, false alarms were 0.94 to 1.04
    of the level at 1e-3, and 0.8 to 0.95 at 1e-4.

    Parameters
    ----------
    order : int
        Order k: 1 for a shift, 2 for scale, 3 for skew, 4 for tail weight.
    per_draw : int
        Independent values in one draw.

    Examples
    --------
    >>> family = Smooth(order=1)
    >>> abs(family.test((np.arange(1000) + 0.5) / 1000).effect) < 1e-12
    True
    >>> family.size(alternative=0.1, level=5e-4, power=0.99)
    3373
    """

    order: int
    per_draw: int = 1
    #: Fewest values for the normal limit.
    minimum_count: ClassVar[int] = 500
    comparable = True
    null_effect = 0.0

    def __post_init__(self) -> None:
        if check_integer("order", self.order, 1, "pass order 1, 2, 3 or 4") > 4:
            refuse("order", self.order, "must be at most 4", "pass order 1, 2, 3 or 4")
        check_integer("per_draw", self.per_draw, 1, "pass how many values one draw holds, e.g. per_draw=1")

    def test(self, values: ArrayLike) -> Outcome:
        """Return the outcome for probability integral transforms in [0, 1], of any shape."""
        components = self._components(values)
        count = check_count("values", components.size, self.minimum_count)
        z = float(components.sum()) / math.sqrt(count)
        return _normal_outcome(z, count, spread=max(1.0, float(components.std())))

    def effect(self, *data: ArrayLike) -> float:
        """Return the mean component, also of fewer values than `minimum_count`."""
        return float(self._components(data[0]).mean())

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to the sums of the components and of their squares."""

        def sums(values: ArrayLike) -> tuple[int, float, float]:
            components = self._components(values)
            return components.size, float(components.sum()), float((components**2).sum())

        def conclude(count: int, total: float, squares: float) -> Outcome:
            if count < self.minimum_count:
                return self.nothing()
            spread = math.sqrt(max(1.0, squares / count - (total / count) ** 2))
            return _normal_outcome(total / math.sqrt(count), count, spread)

        return CondensedData(sums, conclude).add(*data)

    def _components(self, values: ArrayLike) -> FloatArray:
        scaled = 2.0 * unit_array("values", values) - 1.0
        return np.asarray(math.sqrt(2 * self.order + 1) * special.eval_legendre(self.order, scaled))

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting a mean component of `alternative`; 0 below `minimum_count` values."""
        mean = check_number(
            "alternative",
            alternative,
            f"pass a component of order {self.order}, e.g. 0.05",
            minimum=-self._farthest,
            maximum=self._farthest,
        )
        count = check_integer("size", size, 1, DRAWS) * self.per_draw
        power = normal_power(mean * math.sqrt(count), level)
        return power if count >= self.minimum_count else 0.0

    @property
    def _farthest(self) -> float:
        return math.sqrt(2 * self.order + 1)

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, -alternative


def pair_sums(weight: ArrayLike) -> Callable[[ArrayLike, ArrayLike], tuple[FloatArray, ...]]:
    """Return a function that sums noise and weight, both (pairs, ...), for `outcome_of_sums`.

    Weights are scaled by about the largest one, so that squares neither overflow nor vanish.
    """
    exponent = int(np.frexp(np.abs(finite_array("weight", weight)).max())[1])

    def sums(noise: ArrayLike, weight: ArrayLike) -> tuple[FloatArray, ...]:
        values, weights = finite_array("noise", noise), np.ldexp(finite_array("weight", weight), -exponent)
        if values.shape != weights.shape:
            refuse("weight", weights.shape, "must have the shape of noise", f"pass weights of shape {values.shape}")
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is refused as infinite
            products = values * weights
            terms = (weights != 0.0), products, weights**2, products**2
            return tuple(finite_array("noise", np.sum(term, axis=0)) for term in terms)

    return sums


def outcome_of_sums(*sums: SupportsFloat) -> Outcome:
    """Return the outcome for the number of pairs and the sums of noise·weight, weight² and (noise·weight)²."""
    count, products, weights, squares = map(float, sums)
    if weights <= 0.0:
        return Outcome(1.0, 0.0, -1.0, 1.0, 0.0, 0)
    spread = math.sqrt(max(1.0, (squares - products**2 / count) / weights))
    return _normal_outcome(products / math.sqrt(weights), round(count), spread)


def _normal_outcome(z: float, count: int, spread: float) -> Outcome:
    effect = z / math.sqrt(count)
    half = QUANTILE * spread / math.sqrt(count)
    p_value, summary = 2.0 * float(special.ndtr(-abs(z))), NormalScore(z, count)
    return Outcome(p_value, effect, effect - half, effect + half, 0.0, count, summary=summary)
