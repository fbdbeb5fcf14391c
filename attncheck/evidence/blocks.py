"""A statistic of blocks of draws, against that of blocks of a reference: exact whatever the law of either."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck.evidence.distances import Uniform
from attncheck.evidence.family import CONFIDENCE, CondensedData, Family, FloatArray, Outcome, check_count, finite_array
from attncheck.evidence.ranks import rank_score
from attncheck.evidence.summaries import NormalScore

#: The fewest draws of a block, and the blocks that a look has about; fewer where its draws are few.
BLOCK, BLOCKS = 16, 32
# What ranks of few blocks leave of a normal statistic's information.
_EFFICIENCY = 0.8
# Distances of a block from its own law, in units of 1/√count, that a departure must exceed to move all of them.
_ABOVE_NOISE = 2.0
_QUANTILE = float(special.ndtri(0.5 + 0.5 * CONFIDENCE))


def block_of(size: int) -> int:
    """Return how many draws of a look of `size` make a block.

    Examples
    --------
    >>> block_of(100), block_of(6400)
    (16, 200)
    """
    return max(BLOCK, size // BLOCKS)


@dataclass(frozen=True)
class Blocks(Family):
    """The effects of a family on blocks of a sample and of a reference, compared by their joint ranks.

    Given the effects of all blocks every way to share them out is as likely, whatever law the draws have: normal scores
    of the ranks have a known mean and variance. The sum has lighter tails than the normal law that it is held to.
    The effect is what the null of the family expects, plus the difference of the means.

    Parameters
    ----------
    base : Family
        What the effects are of, in its own unit.
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
    #: Below this ranks waste most of the level.
    minimum_count: ClassVar[int] = 8

    @property
    def null_effect(self) -> float:
        """That of the family."""
        return self.base.null_effect

    @property
    def continuous(self) -> bool:
        """No: the sum of scores takes few values, and its p-values are conservative."""
        return False

    def test(self, ours: ArrayLike, theirs: ArrayLike) -> Outcome:
        """Return the outcome for the effects of blocks.

        Parameters
        ----------
        ours, theirs : array_like, shapes (blocks,), (others,)

        Raises
        ------
        InputError
            If an effect is NaN or infinite, or there are fewer than `minimum_count` of either.
        """
        mine, others = (np.sort(finite_array(name, each)) for name, each in (("ours", ours), ("theirs", theirs)))
        check_count("ours", mine.size, self.minimum_count)
        check_count("theirs", others.size, self.minimum_count)
        score = rank_score(mine, others, lambda values: 1e-9 * np.abs(values), logarithms=False)
        effect = self.null_effect + float(mine.mean() - others.mean())
        half = _QUANTILE * math.sqrt(float(mine.var() / mine.size + others.var() / others.size))
        p_value = min(1.0, 2.0 * float(special.ndtr(-abs(score.z))))
        summary = self._summary(score.z, np.concatenate([mine, others]), mine.size)
        return Outcome(p_value, effect, effect - half, effect + half, self.null_effect, mine.size, summary=summary)

    def _summary(self, z: float, joint: FloatArray, count: int) -> NormalScore:
        """Return the score with the error of the effect, from all blocks: whose they are does not show in it.

        Distances add up as the shifts of single numbers do, which others of the same check may be.
        """
        information = count * (joint.size - count) / joint.size
        if isinstance(self.base, Uniform):
            return NormalScore(z, information, "shift")
        variance = float(joint.var())
        return NormalScore(z, information / variance if variance else 0.0, "deviation")

    def condensed(self, *data: Any) -> CondensedData:
        """Return the effects themselves: a look has few blocks, however many draws they hold."""

        def joined(some: tuple[Any, ...], more: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(np.concatenate(pair) for pair in zip(some, more, strict=True))

        return CondensedData(lambda ours, theirs: (np.ravel(ours), np.ravel(theirs)), self.test, joined).add(*data)

    def power(self, alternative: float, size: int, level: float) -> float:
        """Return about the chance of detecting a departure of the family.

        A distance from a law adds up over blocks only where it stands out of the noise of each.
        """
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
