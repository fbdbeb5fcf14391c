"""Comparisons of groups: equal variances, association within groups, the largest of many associations, and blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, check_number, refuse
from attncheck.evidence.distances import Uniform
from attncheck.evidence.family import (
    CONFIDENCE,
    DRAWS,
    QUANTILE,
    TAIL,
    CondensedData,
    Family,
    Outcome,
    check_count,
    check_level,
    finite_array,
)
from attncheck.evidence.normal import Association, outcome_of_sums, pair_sums
from attncheck.evidence.ranks import rank_score
from attncheck.evidence.summaries import NormalScore, normal_score

#: Minimum number of draws in a block, and approximate maximum number of blocks in a look.
BLOCK, BLOCKS = 16, 32
# Efficiency of a rank test with few blocks, relative to a test with a normal statistic.
_EFFICIENCY = 0.8
# Noise of the distance in a block, in units of 1/√n for n values. Alternatives above it shift the distances of all
# blocks.
_ABOVE_NOISE = 2.0


@dataclass(frozen=True)
class EqualVariances(Family):
    """F test of whether one of several groups differs in variance from the others.

    The p-value is that of the most extreme group, multiplied by the number of groups. Two groups make only one
    comparison, of which the larger ratio is reported.

    Parameters
    ----------
    groups : int
        Number of groups, two or more.
    dof : float
        Degrees of freedom of one group in one draw.

    Examples
    --------
    >>> squares = np.array([[90.0, 110.0, 180.0], [110.0, 90.0, 180.0]])
    >>> outcome = EqualVariances(groups=3, dof=100).test(squares, np.full((2, 3), 100.0))
    >>> outcome.effect, outcome.p_value < 1e-5
    (1.8, True)
    >>> EqualVariances(groups=2, dof=16).size(alternative=1.21, level=5e-4, power=0.99)
    233
    """

    tail_exact = True

    groups: int
    dof: float
    null_effect = 1.0
    _farthest = 1e12

    def __post_init__(self) -> None:
        check_integer("groups", self.groups, 2, "pass how many groups are compared, two or more")
        check_number("dof", self.dof, "pass the degrees of freedom of a group in one draw", above=0.0)

    @property
    def continuous(self) -> bool:
        """Whether p-values are uniform under the null: only for two groups; otherwise they are Bonferroni bounds."""
        return self.groups == 2

    @property
    def _comparisons(self) -> int:
        return 1 if self.groups == 2 else self.groups

    def condensed(self, *data: Any) -> CondensedData:
        """Condense sums of squares and their degrees of freedom, both (draws, groups), to sums over the draws."""
        return CondensedData(self._sums, self._outcome).add(*data)

    def _sums(self, squares: ArrayLike, dof: ArrayLike) -> tuple[FloatArray, FloatArray]:
        entries, freedom = finite_array("squares", squares), finite_array("dof", dof)
        if entries.ndim != 2 or entries.shape != freedom.shape:
            refuse("dof", freedom.shape, f"must have the shape {entries.shape} of squares", "pass one dof per sum")
        return entries.sum(axis=0), freedom.sum(axis=0)

    def _outcome(self, ours: FloatArray, ours_dof: FloatArray) -> Outcome:
        remainder, remainder_dof = ours.sum() - ours, ours_dof.sum() - ours_dof
        if ours_dof.min() < 1.0 or ours.max() == 0.0:
            return Outcome(1.0, 1.0, 1.0, 1.0, 1.0, 0)  # an empty group has no variance
        ratios = (ours / ours_dof) / np.maximum(remainder / remainder_dof, ours.max() / self._farthest)
        ratios = np.clip(ratios, 1.0 / self._farthest, self._farthest)
        below, above = special.fdtr(ours_dof, remainder_dof, ratios), special.fdtrc(ours_dof, remainder_dof, ratios)
        tails = np.minimum(below, above)
        if self.groups == 2:
            tails = np.where(ratios == ratios.max(), tails, 1.0)
        # If several p-values underflow to 0, the group with the most extreme ratio is reported.
        worst = int(np.lexsort((-np.abs(np.log(ratios)), tails))[0])
        ratio, one, rest = float(ratios[worst]), float(ours_dof[worst]), float(remainder_dof[worst])
        low, high = ratio / _above(one, rest, TAIL), ratio * _above(rest, one, TAIL)
        p_value = min(1.0, 2.0 * self._comparisons * float(tails[worst]))
        summary = NormalScore(normal_score(1.0 - p_value, p_value), 1.0, "excess")
        return Outcome(p_value, ratio, low, high, 1.0, round(one + rest), summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting a group whose variance is `alternative` times that of the others."""
        ratio = check_number("alternative", alternative, "pass a variance ratio, e.g. 1.1", above=0.0)
        ours = check_integer("size", size, 1, DRAWS) * self.dof
        remainder, half = ours * (self.groups - 1), 0.5 * check_level(level) / self._comparisons
        upper = float(special.fdtrc(ours, remainder, _above(ours, remainder, half) / ratio))
        lower = float(special.fdtrc(remainder, ours, _above(remainder, ours, half) * ratio))
        return min(1.0, upper + lower)

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return alternative, 1.0 / alternative


def _above(one: float, two: float, tail: float) -> float:
    """Return the upper `tail` quantile of the F law with `one` and `two` degrees of freedom.

    It is computed from a lower quantile, because 1 − tail loses digits.
    """
    return 1.0 / float(special.fdtri(two, one, tail))


@dataclass(frozen=True)
class WithinGroups(Association):
    """Association of noise and weight, with weights centred in each group, so that groups may differ in scale.

    Examples
    --------
    >>> noise, group = np.array([3.0, 3.0, -2.0, -2.0]), np.array([0, 0, 1, 1])
    >>> WithinGroups().test(noise, np.array([5.0, 4.0, -5.0, -4.0]), group).effect
    0.0
    """

    def condensed(self, *data: Any) -> CondensedData:
        """Condense noise, weight and group number (from 0) of each pair to sums by group."""
        groups = 1 if len(data) < 3 else max(self.per_draw, int(np.max(data[2])) + 1)

        def sums(noise: ArrayLike, weight: ArrayLike, group: ArrayLike | None = None) -> tuple[Any, ...]:
            values, weights = finite_array("noise", noise), finite_array("weight", weight)
            numbers = np.zeros(weights.shape, dtype=np.int64) if group is None else np.asarray(group, dtype=np.int64)
            terms = [values**k * weights**m for k, m in _POWERS]
            return tuple(np.bincount(numbers, term, minlength=groups) for term in terms)

        return CondensedData(sums, _of_centred).add(*data)


# Pairs (k, m) such that the sums of noise^k weight^m determine the sums with centred weights.
_POWERS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2))


def _of_centred(*sums: FloatArray) -> Outcome:
    """Return the outcome from sums of ``noise**k * weight**m`` in each group, (groups,), in the order of `_POWERS`."""
    s = dict(zip(_POWERS, sums, strict=True))
    mean = s[0, 1] / np.maximum(s[0, 0], 1.0)
    weights = np.maximum(s[0, 2] - mean * s[0, 1], 0.0)
    # Leave out groups with constant weights, because their centred weights are rounding errors.
    valid = weights > 1e-12 * s[0, 2]
    parts = s[0, 0], s[1, 1] - mean * s[1, 0], weights, s[2, 2] - 2.0 * mean * s[2, 1] + mean**2 * s[2, 0]
    return outcome_of_sums(*(part[valid].sum() for part in parts))


@dataclass(frozen=True)
class LargestAssociation(Association):
    """Largest association among several columns of pairs of noise and weight.

    Under the null, noise is standard normal given its weight. ⟨noise, weight⟩/‖weight‖ of each column is then N(0, 1),
    however the columns depend on each other. The p-value is that of the most significant column, times the number of
    columns; small p-values are nearly uniform. The effect is that of the same column, with an interval that holds for
    all columns simultaneously.

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
        check_integer("columns", self.columns, 1, "pass how many columns there are, e.g. columns=120")

    @property
    def comparable(self) -> bool:
        """Whether `Blocks` may use the effects: only those of a single column."""
        return self.columns == 1

    @property
    def continuous(self) -> bool:
        """Whether p-values are uniform under the null: only for one column; otherwise they are Bonferroni bounds."""
        return self.columns == 1

    def condensed(self, *data: Any) -> CondensedData:
        """Condense noise and weight, both (pairs, columns), to sums; `count` is that of the most significant column."""
        if np.ndim(data[0]) != 2:
            refuse("noise", np.shape(data[0]), "must be two-dimensional", "pass arrays (pairs, columns)")

        def conclude(*sums: Any) -> Outcome:
            return self._outcome([outcome_of_sums(*column) for column in zip(*sums, strict=True)])

        return CondensedData(pair_sums(data[1]), conclude).add(*data)

    def _outcome(self, outcomes: Sequence[Outcome]) -> Outcome:
        """Combine the outcomes of all columns."""
        least = min(outcomes, key=lambda outcome: outcome.p_value)
        half = (least.high - least.effect) * _widened(len(outcomes))
        p_value = min(1.0, len(outcomes) * least.p_value)
        interval = least.effect, least.effect - half, least.effect + half
        summary = NormalScore(normal_score(1.0 - p_value, p_value), 1.0, "excess")
        return Outcome(p_value, *interval, 0.0, least.count, summary=summary)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the chance of detecting a correlation of `alternative` in a single column."""
        return super().power(alternative, size, check_level(level) / self.columns)


def _widened(columns: int) -> float:
    """Return the factor by which an interval must widen to hold for the effects of all columns simultaneously."""
    alone, all_of_them = (float(special.ndtri(0.5 * (1.0 - CONFIDENCE) / count)) for count in (1, columns))
    return all_of_them / alone


def block_of(size: int) -> int:
    """Return the number of draws per block in a look of `size` draws.

    Examples
    --------
    >>> block_of(100), block_of(6400)
    (16, 200)
    """
    return max(BLOCK, size // BLOCKS)


@dataclass(frozen=True)
class Blocks(Family):
    """Rank test that compares a family's effects on blocks of a sample with its effects on blocks of a reference.

    Normal scores of the ranks have known mean and variance under the null, whatever the law of the draws, and lighter
    tails than the normal law. The effect is the family's null effect plus the difference of the mean effects.

    Parameters
    ----------
    base : Family
        Family of the effects.
    ratio : float
        Size of the reference divided by that of the sample.

    Examples
    --------
    >>> from attncheck.evidence.families import Scale
    >>> rng = np.random.default_rng(0)
    >>> family = Blocks(Scale(dof=8), ratio=2.0)
    >>> outcome = family.test(1.2 + 0.1 * rng.standard_normal(32), 1.0 + 0.1 * rng.standard_normal(64))
    >>> outcome.p_value < 1e-6, round(outcome.effect, 1)
    (True, 1.2)
    """

    base: Family
    ratio: float = 1.0
    #: With fewer blocks, the rank test is very conservative.
    minimum_count: ClassVar[int] = 8
    # The sum of scores is discrete, so p-values are conservative instead of uniform.
    continuous = False

    @property
    def null_effect(self) -> float:
        """Null effect of the base family."""
        return self.base.null_effect

    def test(self, ours: ArrayLike, theirs: ArrayLike) -> Outcome:
        """Return the outcome for the effects of the sample's blocks, (blocks,), and of the reference's, (others,)."""
        mine, reference = (np.sort(finite_array(name, array)) for name, array in (("ours", ours), ("theirs", theirs)))
        check_count("ours", mine.size, self.minimum_count)
        check_count("theirs", reference.size, self.minimum_count)
        score = rank_score(mine, reference, lambda values: 1e-9 * np.abs(values), logarithms=False)
        effect = self.null_effect + float(mine.mean() - reference.mean())
        half = QUANTILE * math.sqrt(float(mine.var() / mine.size + reference.var() / reference.size))
        p_value = min(1.0, 2.0 * float(special.ndtr(-abs(score.z))))
        summary = self._summary(score.z, np.concatenate([mine, reference]), mine.size)
        return Outcome(p_value, effect, effect - half, effect + half, self.null_effect, mine.size, summary=summary)

    def _summary(self, z: float, joint: FloatArray, count: int) -> NormalScore:
        """Return the summary of the rank score `z`; the error of the effect is estimated from all blocks, `joint`."""
        information = count * (joint.size - count) / joint.size
        if isinstance(self.base, Uniform):
            return NormalScore(z, information, "shift")
        variance = float(joint.var())
        return NormalScore(z, information / variance if variance else 0.0, "deviation")

    def condensed(self, *data: Any) -> CondensedData:
        """Return data that keep the effect of every block, since blocks are few."""

        def joined(first: tuple[Any, ...], more: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(np.concatenate(pair) for pair in zip(first, more, strict=True))

        return CondensedData(lambda ours, theirs: (np.ravel(ours), np.ravel(theirs)), self.test, joined).add(*data)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return the approximate power; it is 0 if the alternative is a distance below the noise of a single block."""
        if size < BLOCK * max(BLOCK, self.minimum_count):
            return 0.0
        if isinstance(self.base, Uniform):
            noise = _ABOVE_NOISE / math.sqrt(block_of(size) * self.base.per_draw)
            return float(alternative - self.null_effect >= noise)
        share = _EFFICIENCY * self.ratio / (1.0 + self.ratio)
        return self.base.power(alternative, max(1, int(share * size)), level)

    @property
    def _farthest(self) -> float:
        return self.base._farthest

    def _mirrored(self, alternative: float) -> tuple[float, ...]:
        return self.base._mirrored(alternative)
