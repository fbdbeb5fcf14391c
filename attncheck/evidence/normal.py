"""Families whose statistic is normal under the null, exactly or in the limit."""

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
    finite_array,
    normal_power,
    unit_array,
)
from attncheck.evidence.summaries import NormalScore

# Standard deviation of log |N(0, 1)|.
_LOG_NORMAL = math.pi / 8**0.5
# Ratio of neighbouring widths, and coefficients with which mean logarithms at three widths add up to the order: terms
# of the next order in 1/n cancel.
_RATIO = 4.0
_WEIGHTS = np.array([1.0, -(_RATIO + 1.0), _RATIO]) / (math.log(_RATIO) * (_RATIO - 1.0))


@dataclass(frozen=True)
class Association(Family):
    """Test of association between noise and a weight; under the null, noise is standard normal given all else.

    If the weight is independent of the noise, z = ⟨noise, weight⟩/‖weight‖ is exactly standard normal. The effect is
    z/√count, which is a correlation if the noise has the declared variance, and may exceed 1 otherwise. Its interval
    uses the larger one of the spread under the null and the spread in the sample.

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
        """Whether a rank test may compare effects on blocks of a sample with effects on blocks of reference draws."""
        return True

    def plannable(self, effect: float) -> float:
        """Return the number nearest to `effect` that `power` accepts as an alternative."""
        return min(1.0, max(-1.0, effect))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense noise and weight of equal shape to sums; `count` is the number of nonzero weights."""
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
    """One component of Neyman's smooth test, for a shift, scale, skew or tail weight of values that should be uniform.

    The effect is the mean of √(2k + 1) P_k(2u − 1) over the values u, where P_k is the Legendre polynomial of degree k.
    Each term has mean 0 and variance 1 under the null. P-values use the normal limit: at `minimum_count` values, false
    alarms were 0.94 to 1.04 of the level at 1e-3, and 0.8 to 0.95 at 1e-4.

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

    def effect(self, *data: ArrayLike) -> float:
        """Return the mean of the component over the values; unlike `test`, it needs no minimum number of values."""
        return float(self._components(data[0]).mean())

    def condensed(self, *data: Any) -> CondensedData:
        """Condense probability integral transforms in [0, 1] to sums of the components and their squares."""

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
        """Return the chance of detecting that the component has the mean `alternative`.

        It is 0 for fewer than `minimum_count` values.
        """
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
    """Return a function that maps noise and weight, both (pairs, ...), to the arguments of `outcome_of_sums`.

    Weights are divided by a power of 2 near the largest of the given `weight`, so that squares neither overflow nor
    vanish.
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
    """Return the outcome from the number of pairs and the sums of noise·weight, weight² and (noise·weight)²."""
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


@dataclass(frozen=True)
class Order(Family):
    """Test that deviations at widths n, 4n and 16n scale as n^order.

    The effect is (4 s₂ - s₁)/3, where s₁ and s₂ are slopes of mean log |deviation| against log n between
    neighbouring widths. If the scaled deviation approaches its limit law as 1/n, so do s₁ and s₂, and the effect
    converges as 1/n². The p-value uses the normal limit.

    Parameters
    ----------
    order : float
        Order under the null.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> widths = np.array([32, 128, 512])
    >>> deviations = rng.standard_normal((4000, 3)) / np.sqrt(widths)
    >>> outcome = Order(-0.5).test(np.log(np.abs(deviations)), widths)
    >>> outcome.p_value > 0.01, round(outcome.effect, 1)
    (True, -0.5)
    """

    order: float
    #: Fewest draws for the normal limit of the mean.
    minimum_count: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_number("order", self.order, "pass an order in n, e.g. order=-0.5")

    @property
    def null_effect(self) -> float:
        """The declared order."""
        return self.order

    def condensed(self, *data: Any) -> CondensedData:
        """Condense log |deviation| of draws, (draws, 3), to sums of centred values and their squares.

        The second argument holds the widths, in any shape.
        """
        centre = self._checked(*data).mean(axis=0)

        def sums(logs: ArrayLike, widths: ArrayLike) -> tuple[int, FloatArray, FloatArray]:
            values = self._checked(logs, widths) - centre
            return len(values), values.sum(axis=0), (values**2).sum(axis=0)

        def conclude(count: int, total: FloatArray, squares: FloatArray) -> Outcome:
            if count < self.minimum_count:
                return self.nothing()
            variances = np.maximum(squares - total**2 / count, 0.0) / (count - 1)
            return self._outcome(count, centre + total / count, np.sqrt(variances))

        return CondensedData(sums, conclude).add(*data)

    def _checked(self, logs: ArrayLike, widths: ArrayLike) -> FloatArray:
        """Return the logarithms; raise `InputError` unless there are three widths that grow by the factor 4."""
        values, sizes = finite_array("logs", logs), np.unique(finite_array("widths", widths))
        if values.ndim != 2 or values.shape[1] != 3 or sizes.shape != (3,):
            refuse("logs", values.shape, "must be (draws, 3), with three widths", "pass one column per width")
        if np.abs(sizes[1:] / sizes[:-1] - _RATIO).max() > 1e-9:
            refuse("widths", sizes.tolist(), "do not grow by the factor 4", "pass widths n, 4n and 16n")
        return values

    def _outcome(self, count: int, means: FloatArray, deviations: FloatArray) -> Outcome:
        """Return the outcome for means and standard deviations of the logarithms."""
        spreads = deviations / math.sqrt(count)
        slope, error = float(_WEIGHTS @ means), float(np.hypot.reduce(_WEIGHTS * spreads))
        z = (slope - self.order) / error if error > 0 else math.inf
        half = QUANTILE * error
        p_value = float(2.0 * special.ndtr(-abs(z)))
        # Use the known spread of the logarithms: one that is estimated from the sample would depend on the sample's
        # slope.
        information = count / (_LOG_NORMAL * math.hypot(*_WEIGHTS)) ** 2
        summary = NormalScore(math.copysign(-special.ndtri(0.5 * max(p_value, 1e-300)), z), information)
        return Outcome(p_value, slope, slope - half, slope + half, self.order, count, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting that the deviations scale as n^`alternative`."""
        truth = check_number("alternative", alternative, "pass the true order, e.g. -0.25")
        count = check_integer("size", size, 1, DRAWS)
        mean = (truth - self.order) * math.sqrt(count) / (_LOG_NORMAL * math.hypot(*_WEIGHTS))
        return normal_power(mean, level)

    @property
    def _farthest(self) -> float:
        return self.order + 10.0

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, 2.0 * self.order - alternative
