"""Largest of many associations, for a fault in one of them that a mean would dilute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.errors import check_whole, refuse
from attncheck.evidence.family import CONFIDENCE, CondensedData, Outcome, check_level, finite_array
from attncheck.evidence.normal import Association, outcome_of_sums, pair_sums
from attncheck.evidence.summaries import NormalScore, normal_score


@dataclass(frozen=True)
class LargestAssociation(Association):
    """Noise that is standard normal given its weight under the null, in several columns.

    ⟨noise, weight⟩/‖weight‖ of each column is N(0, 1), however the columns depend on each other. The p-value is
    that of the most significant column times the number of columns, nearly uniform where small. The effect is that
    of the same column, with a simultaneous interval.

    Parameters
    ----------
    per_draw : int
        Pairs of noise and weight of one draw in one column.
    columns : int
        Number of columns.

    Examples
    --------
    >>> outcome = LargestAssociation(columns=2).test([[1.0, 2.0], [-1.0, 3.0]], [[1.0, 1.0], [1.0, 1.0]])
    >>> round(outcome.effect, 2), round(outcome.p_value, 5)
    (2.5, 0.00081)
    >>> LargestAssociation(columns=120).size(alternative=0.1, level=5e-4, power=0.99)
    4802
    """

    columns: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("columns", self.columns, 1, "pass how many columns there are, e.g. columns=120")

    @property
    def comparable(self) -> bool:
        """Whether there is a single column."""
        return self.columns == 1

    @property
    def continuous(self) -> bool:
        """True for a single column only: p-values of more are Bonferroni bounds."""
        return self.columns == 1

    def test(self, noise: ArrayLike, weight: ArrayLike) -> Outcome:
        """Return the outcome for noise and weight, both (pairs, columns); `count` is of the column that decides."""
        values, weights = finite_array("noise", noise), finite_array("weight", weight)
        if values.ndim != 2 or values.shape != weights.shape:
            refuse(
                "noise",
                values.shape,
                "must be two-dimensional, with the shape of weight",
                "pass arrays (pairs, columns)",
            )
        single = Association(self.per_draw)
        return self._outcome([single.test(values[:, k], weights[:, k]) for k in range(values.shape[1])])

    def condensed(self, *data: Any) -> CondensedData:
        """Condense to the sums of each column."""

        def conclude(*sums: Any) -> Outcome:
            return self._outcome([outcome_of_sums(*column) for column in zip(*sums, strict=True)])

        return CondensedData(pair_sums(data[1]), conclude).add(*data)

    def _outcome(self, found: Sequence[Outcome]) -> Outcome:
        """Combine the outcomes of all columns."""
        least = min(found, key=lambda outcome: outcome.p_value)
        half = (least.high - least.effect) * _widened(len(found))
        p_value = min(1.0, len(found) * least.p_value)
        interval = least.effect, least.effect - half, least.effect + half
        summary = NormalScore(normal_score(1.0 - p_value, p_value), 1.0, "excess")
        return Outcome(p_value, *interval, 0.0, least.count, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting a correlation of `alternative` in a single column."""
        return super().power(alternative, size, check_level(level) / self.columns)


def _widened(columns: int) -> float:
    """Return the factor by which intervals widen to cover the effects of all columns simultaneously."""
    alone, all_of_them = (float(special.ndtri(0.5 * (1.0 - CONFIDENCE) / count)) for count in (1, columns))
    return all_of_them / alone
