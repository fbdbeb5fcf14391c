"""Rank test of a statistic on blocks of draws against blocks of a reference, exact for any law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.evidence.distances import Uniform
from attncheck.evidence.family import QUANTILE, CondensedData, Family, Outcome, check_count, finite_array
from attncheck.evidence.ranks import rank_score
from attncheck.evidence.summaries import NormalScore

#: Fewest draws in a block, and about the most blocks in a look.
BLOCK, BLOCKS = 16, 32
# Efficiency of ranks of few blocks, relative to a normal statistic.
_EFFICIENCY = 0.8
# Noise of a block's distance, in units of 1/√count: larger alternatives shift the distances of all blocks.
_ABOVE_NOISE = 2.0


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
    """Rank test of a family's effects on blocks of a sample against those on blocks of a reference.

    Normal scores of the ranks have known mean and variance under the null, whatever the law of the draws, and
    lighter tails than the normal law. The effect is the null effect plus the difference of means.

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
    #: With fewer blocks, ranks waste most of the level.
    minimum_count: ClassVar[int] = 8
    # The sum of scores is discrete, and p-values are conservative.
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
        """Return the summary of a score, with the error of its effect estimated from all blocks."""
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
        """Return the approximate power; 0 for distances below the noise of a single block."""
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
