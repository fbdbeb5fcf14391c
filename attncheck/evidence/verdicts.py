"""What can be said of one claim on one layer, and the trail of looks that led there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from attncheck.evidence.family import Outcome


class Verdict(StrEnum):
    """The verdicts; only `CONSISTENT` is a pass.

    ``consistent``
        No departure was seen, down to the gap that the check could have seen.
    ``violated``
        The departure was confirmed on fresh draws; the run's false-alarm budget covers this verdict.
    ``not examined``
        The subject does not expose what it takes, does not support the layer, or the plan holds too little
        power at an affordable size.
    ``inconclusive``
        No fresh draws could be had and the blocks disagree.
    ``explained``
        A pool is suspicious, and cases in it are violated by themselves: no further look was taken.

    Examples
    --------
    >>> Verdict("violated").passed, str(Verdict.NOT_EXAMINED)
    (False, 'not examined')
    """

    CONSISTENT = "consistent"
    VIOLATED = "violated"
    NOT_EXAMINED = "not examined"
    INCONCLUSIVE = "inconclusive"
    EXPLAINED = "explained"

    @property
    def passed(self) -> bool:
        """Whether the claim was examined and no departure seen."""
        return self is Verdict.CONSISTENT


@dataclass(frozen=True)
class Trail:
    """The looks that one statistic needed, and what they came to.

    Parameters
    ----------
    outcomes : tuple of Outcome
        One for each look taken, in order; 1 to 4.
    verdict : Verdict
        What the looks decided.
    level : float
        Level of each look.

    Examples
    --------
    >>> Trail((Outcome(0.4, 1.0, 0.9, 1.1, 1.0, 100),), Verdict.CONSISTENT, 5e-4).combined
    1.0
    """

    outcomes: tuple[Outcome, ...]
    verdict: Verdict
    level: float

    @property
    def p_values(self) -> tuple[float, ...]:
        """The p-value of each look taken."""
        return tuple(outcome.p_value for outcome in self.outcomes)

    @property
    def combined(self) -> float:
        """The number max(p₁, p₂, p₃)³, or 1 where the looks stopped earlier.

        A valid p-value: independent looks are all below t with chance at most t³. It ranks statistics; the
        verdict is not made from it, and where the fourth look decided it may be large.
        """
        return max(self.p_values[:3]) ** 3 if len(self.outcomes) >= 3 else 1.0

    @property
    def last(self) -> Outcome:
        """The outcome of the look that decided."""
        return self.outcomes[-1]
