"""Statistical families of all checks.

`Scale`, `Association`, `Uniform` and `Count` are exact; `Smooth` and `TwoSample` are approximations with measured
tails. See `attncheck.evidence.family.Family`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.errors import check_choice, check_integer, check_number, refuse
from attncheck.evidence.distances import TwoSample, Uniform
from attncheck.evidence.family import (
    DRAWS,
    TAIL,
    CondensedData,
    Family,
    Outcome,
    check_level,
    finite_array,
)
from attncheck.evidence.normal import Association, Smooth
from attncheck.evidence.summaries import Events, NormalScore, normal_score

__all__ = ["Association", "Count", "Family", "Outcome", "Scale", "Smooth", "TwoSample", "Uniform"]


@dataclass(frozen=True)
class Scale(Family):
    """Exact two-sided test, with equal tails, that sums of squares have a chi-square law.

    The effect is the ratio of the observed to the declared variance.

    Parameters
    ----------
    dof : float
        Degrees of freedom of one draw; for planning, and the default of `test`.

    Examples
    --------
    >>> family = Scale(dof=64)
    >>> outcome = family.test([80.0, 75.0, 90.0])
    >>> round(outcome.effect, 3), outcome.count
    (1.276, 192)
    >>> family.size(alternative=1.1, level=5e-4, power=0.99)
    117
    """

    tail_exact = True

    dof: float
    comparable = True
    null_effect = 1.0
    _farthest = 1e12

    def __post_init__(self) -> None:
        check_number("dof", self.dof, "pass the degrees of freedom of one draw, e.g. dof=64", above=0.0)

    def plannable(self, effect: float) -> float:
        """Return the number nearest to `effect` that `power` accepts as an alternative."""
        return max(effect, 1e-9)

    def condensed(self, *data: Any) -> CondensedData:
        """Condense independent sums of squares, in units of the declared variance, and their degrees of freedom.

        Sums may have any shape, to which the degrees of freedom are broadcast; `count` is the total of degrees of
        freedom.
        """
        return CondensedData(self._sums, self._outcome).add(*data)

    def _sums(self, squares: ArrayLike, dof: ArrayLike | None = None) -> tuple[float, float]:
        entries = finite_array("squares", squares)
        freedom = finite_array("dof", self.dof if dof is None else dof)
        if entries.min() < 0.0 or freedom.min() < 0.0:
            remedy = "pass sums of squares and their degrees of freedom"
            refuse("squares", float(entries.min()), "squares and dof must not be negative", remedy)
        try:
            total_dof = float(np.broadcast_to(freedom, entries.shape).sum())
        except ValueError:
            remedy = "pass one dof for each sum of squares, or one for all"
            refuse("dof", freedom.shape, f"does not broadcast to {entries.shape}", remedy)
        with np.errstate(over="ignore"):  # an overflow is refused as infinite
            return float(finite_array("squares", entries.sum())), total_dof

    def _outcome(self, total: float, total_dof: float) -> Outcome:
        if total_dof < 1.0:
            return self.nothing()
        below, above = float(special.chdtr(total_dof, total)), float(special.chdtrc(total_dof, total))
        low = total / _chi_square_above(total_dof, TAIL)
        high = total / _chi_square_below(total_dof, TAIL)
        # The log ratio has variance of about 2/dof.
        summary = NormalScore(normal_score(below, above), 0.5 * total_dof, "ratio")
        p_value = _two_sided(below, above)
        return Outcome(p_value, total / total_dof, low, high, 1.0, round(total_dof), summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the exact chance of detecting `alternative` times the declared variance."""
        ratio = check_number("alternative", alternative, "pass a variance ratio, e.g. 1.1", above=0.0)
        total = check_integer("size", size, 1, DRAWS) * self.dof
        half = 0.5 * check_level(level)
        if total < 1.0:
            return 0.0
        upper = float(special.chdtrc(total, _chi_square_above(total, half) / ratio))
        lower = float(special.chdtr(total, _chi_square_below(total, half) / ratio))
        return min(1.0, upper + lower)

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, 1.0 / alternative


@dataclass(frozen=True)
class Count(Family):
    """Exact binomial test that events, such as threshold exceedances, have a known probability.

    The effect is the observed frequency.

    Parameters
    ----------
    probability : float
        Chance per trial under the null, in [0, 1]; 0 for events that must never happen.
    per_draw : int
        Independent trials in one draw.
    tail : {"upper", "two-sided"}
        Whether too few events are suspicious as well.

    Examples
    --------
    >>> family = Count(probability=0.001)
    >>> outcome = family.test(6, 1000)
    >>> outcome.effect, round(outcome.p_value, 6)
    (0.006, 0.000588)
    >>> Count(probability=0.0).test(1, 1000).p_value
    0.0
    """

    tail_exact = True

    probability: float
    per_draw: int = 1
    tail: str = "upper"
    # Counts are discrete, so p-values are conservative instead of uniform.
    continuous = False
    _farthest = 1.0

    def __post_init__(self) -> None:
        remedy = "pass the chance of the event in one trial"
        check_number("probability", self.probability, remedy, minimum=0.0, maximum=1.0)
        check_integer("per_draw", self.per_draw, 1, "pass how many trials one draw holds, e.g. per_draw=1")
        check_choice("tail", self.tail, ("upper", "two-sided"))

    @property
    def holds_for_all(self) -> bool:
        """Whether the null holds for draws of any continuous law."""
        return self.probability == 0.0

    @property
    def null_effect(self) -> float:
        """The declared probability."""
        return float(self.probability)

    def test(self, events: int, trials: int) -> Outcome:
        """Return the outcome for events in independent trials, with the Clopper–Pearson interval."""
        hits = check_integer("events", events, 0, "pass a number of events")
        total = check_integer("trials", trials, 1, "pass the number of independent trials")
        if hits > total:
            remedy = "pass events and trials of one sample"
            refuse("events", hits, f"must not exceed the {total} trials", remedy)
        p_value = float(scipy.stats.binom.sf(hits - 1, total, self.probability))
        if self.tail == "two-sided":
            p_value = _two_sided(float(scipy.stats.binom.cdf(hits, total, self.probability)), p_value)
        low = float(special.betaincinv(hits, total - hits + 1, TAIL)) if hits else 0.0
        high = float(special.betainccinv(hits + 1, total - hits, TAIL)) if hits < total else 1.0
        upper = self.tail == "upper"
        at_most, summary = upper and self.probability > 0.0, Events(hits, total, float(self.probability), upper)
        return Outcome(p_value, hits / total, low, high, self.null_effect, total, at_most=at_most, summary=summary)

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to the sums of events and trials."""
        return CondensedData(
            lambda *counts: counts, lambda hits, of: self.test(hits, of) if of else self.nothing()
        ).add(*data)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the exact chance of detecting a true probability of `alternative`."""
        remedy = "pass the true chance of the event in one trial"
        truth = check_number("alternative", alternative, remedy, minimum=0.0, maximum=1.0)
        trials = check_integer("size", size, 1, DRAWS) * self.per_draw
        share = check_level(level) * (1.0 if self.tail == "upper" else 0.5)
        most, fewest = _significant(share, trials, self.probability)
        chance = float(special.betainc(fewest, trials - fewest + 1, truth)) if fewest <= trials else 0.0
        if self.tail == "two-sided" and most >= 0:
            chance += float(special.betaincc(most + 1, trials - most, truth))
        return min(1.0, chance)


# Cached, because a search for an effect tries many alternatives at one size.
@functools.lru_cache(maxsize=4096)
def _significant(share: float, trials: int, probability: float) -> tuple[int, int]:
    """Return the largest number of events that is significantly small, and the smallest that is significantly large.

    The lower tail of the first number, and the upper tail of the second one, have at most the chance `share`.
    """
    if probability == 0.0:
        return -1, 1
    most, fewest = (tail(share, trials, probability) for tail in (scipy.stats.binom.ppf, scipy.stats.binom.isf))
    return int(most) - 1, int(fewest) + 1


def _two_sided(below: float, above: float) -> float:
    """Return the two-sided p-value: twice the smaller tail, at most 1."""
    return min(1.0, 2.0 * min(below, above))


def _chi_square_above(dof: float, tail: float) -> float:
    """Return the upper `tail` quantile of a chi-square."""
    return float(special.chdtri(dof, tail))


def _chi_square_below(dof: float, tail: float) -> float:
    """Return the lower `tail` quantile of a chi-square; 1 − tail would lose digits."""
    return 2.0 * float(special.gammaincinv(0.5 * dof, tail))
