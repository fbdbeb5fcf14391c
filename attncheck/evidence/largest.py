"""The largest of many associations: one of them may be a fault that a mean over all would dilute."""

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
    """Noise that the null makes standard normal given its weight, in several columns: is any of them tied?

    ⟨noise, weight⟩/‖weight‖ of each column is exactly N(0, 1), however the columns depend on each other. The p-value
    is the smallest of the columns' times their number: at most uniform, and nearly uniform where it is small. The
    effect is that of the column with the smallest p-value, as `Association` has it, and its interval covers the effects
    of all columns at once.

    Parameters
    ----------
    per_draw : int
        Pairs of noise and weight of one draw in one column; for planning.
    columns : int
        Columns; for planning.

    Raises
    ------
    InputError
        If a parameter is not a positive whole number.

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
    def continuous(self) -> bool:
        """No: p-values are at most uniform, but for a single column."""
        return self.columns == 1

    def test(self, noise: ArrayLike, weight: ArrayLike) -> Outcome:
        """Return the outcome for noise and weight.

        Parameters
        ----------
        noise : array_like, shape (pairs, columns)
            In each column independent and standard normal under the null, given `weight`.
        weight : array_like, shape of `noise`
            What the noise must not be tied to.

        Returns
        -------
        Outcome
            `count` is the number of pairs of the column with the smallest p-value whose weight is not zero.

        Raises
        ------
        InputError
            If an entry is NaN or infinite, or the shapes differ or are no table.
        """
        values, weights = finite_array("noise", noise), finite_array("weight", weight)
        if values.ndim != 2 or values.shape != weights.shape:
            refuse("noise", values.shape, "must be a table of the shape of weight", "pass arrays (pairs, columns)")
        single = Association(self.per_draw)
        return self._outcome([single.test(values[:, k], weights[:, k]) for k in range(values.shape[1])])

    def condensed(self, *data: Any) -> CondensedData:
        """Return the sums of each column."""

        def conclude(*sums: Any) -> Outcome:
            return self._outcome([outcome_of_sums(*column) for column in zip(*sums, strict=True)])

        return CondensedData(pair_sums(data[1]), conclude).add(*data)

    def _outcome(self, found: Sequence[Outcome]) -> Outcome:
        """Return the outcome for those of all columns."""
        least = min(found, key=lambda outcome: outcome.p_value)
        half = (least.high - least.effect) * _widened(len(found))
        p_value = min(1.0, len(found) * least.p_value)
        interval = least.effect, least.effect - half, least.effect + half
        summary = NormalScore(normal_score(1.0 - p_value, p_value), 1.0, "excess")
        return Outcome(p_value, *interval, 0.0, least.count, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting a correlation of `alternative` in one column, all others being right."""
        return super().power(alternative, size, check_level(level) / self.columns)


def _widened(columns: int) -> float:
    """Return how much wider an interval is that covers all of so many effects, with the same chance."""
    alone, all_of_them = (float(special.ndtri(0.5 * (1.0 - CONFIDENCE) / count)) for count in (1, columns))
    return all_of_them / alone
