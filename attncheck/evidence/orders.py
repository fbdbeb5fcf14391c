"""Order of decay in the width, with the next-order term removed by extrapolation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

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
)
from attncheck.evidence.summaries import NormalScore

# Standard deviation of log |N(0, 1)|.
_LOG_NORMAL = math.pi / 8**0.5


@dataclass(frozen=True)
class Order(Family):
    """Deviations at widths n, f n, f² n that fall as n^order under the null.

    The effect is (f s₂ - s₁)/(f - 1), where s₁ and s₂ are slopes of mean log |deviation| against log n between
    neighbouring widths. If the scaled deviation approaches its limit law as 1/n, so do s₁ and s₂, and the effect
    converges as 1/n². The p-value uses the normal limit.

    Parameters
    ----------
    order : float
        Order under the null.
    ratio : float
        Ratio f of neighbouring widths.

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
    ratio: float = 4.0
    #: Fewest draws for the normal limit of the mean.
    minimum_count: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_number("order", self.order, "pass an order in n, e.g. order=-0.5")
        check_number("ratio", self.ratio, "pass the ratio of neighbouring widths, e.g. ratio=4.0", above=1.0)

    @property
    def null_effect(self) -> float:
        """The declared order."""
        return self.order

    @property
    def _weights(self) -> tuple[float, float, float]:
        """Coefficients that give the slope from the mean logarithms at the three widths."""
        f, unit = self.ratio, math.log(self.ratio) * (self.ratio - 1.0)
        return 1.0 / unit, -(f + 1.0) / unit, f / unit

    def test(self, logs: ArrayLike, widths: ArrayLike) -> Outcome:
        """Return the outcome for log |deviation| of independent draws, (draws, 3), and the widths in any shape."""
        values = self._checked(logs, widths)
        count = check_count("draws", len(values), 2)
        return self._outcome(count, values.mean(axis=0), values.std(axis=0, ddof=1))

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to the sums of the centred logarithms and of their squares."""
        centre = self._checked(*data).mean(axis=0)

        def sums(logs: ArrayLike, widths: ArrayLike) -> tuple[int, FloatArray, FloatArray]:
            values = self._checked(logs, widths) - centre
            return len(values), values.sum(axis=0), (values**2).sum(axis=0)

        def conclude(count: int, total: FloatArray, squares: FloatArray) -> Outcome:
            variances = np.maximum(squares - total**2 / count, 0.0) / (count - 1)
            return self._outcome(count, centre + total / count, np.sqrt(variances))

        return CondensedData(sums, conclude).add(*data)

    def _checked(self, logs: ArrayLike, widths: ArrayLike) -> FloatArray:
        """Return the logarithms; raise `InputError` unless there are three widths that grow by the ratio."""
        values, sizes = finite_array("logs", logs), np.unique(finite_array("widths", widths))
        if values.ndim != 2 or values.shape[1] != 3 or sizes.shape != (3,):
            refuse("logs", values.shape, "must be (draws, 3), with three widths", "pass one column per width")
        if np.abs(sizes[1:] / sizes[:-1] - self.ratio).max() > 1e-9:
            refuse(
                "widths",
                sizes.tolist(),
                f"do not grow by the factor {self.ratio:g}",
                f"pass widths n, {self.ratio:g} n, {self.ratio**2:g} n",
            )
        return values

    def _outcome(self, count: int, means: FloatArray, deviations: FloatArray) -> Outcome:
        """Return the outcome for means and standard deviations of the logarithms."""
        spreads = deviations / math.sqrt(count)
        weights = np.array(self._weights)
        slope, error = float(weights @ means), float(np.hypot.reduce(weights * spreads))
        z = (slope - self.order) / error if error > 0 else math.inf
        half = QUANTILE * error
        p_value = float(2.0 * special.ndtr(-abs(z)))
        # The information uses the known spread: a spread estimated from the sample would depend on the sample's slope.
        information = count / (_LOG_NORMAL * math.hypot(*self._weights)) ** 2
        summary = NormalScore(math.copysign(-special.ndtri(0.5 * max(p_value, 1e-300)), z), information)
        return Outcome(p_value, slope, slope - half, slope + half, self.order, count, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting a true order of `alternative`."""
        truth = check_number("alternative", alternative, "pass the true order, e.g. -0.25")
        count = check_integer("size", size, 1, DRAWS)
        mean = (truth - self.order) * math.sqrt(count) / (_LOG_NORMAL * math.hypot(*self._weights))
        return normal_power(mean, level)

    @property
    def _farthest(self) -> float:
        return self.order + 10.0

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, 2.0 * self.order - alternative
