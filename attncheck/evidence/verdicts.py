"""Verdict on one claim about one layer, and the looks behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from attncheck._lib.text import number
from attncheck.evidence.family import Outcome


def allowed(null_effect: float | None, at_most: bool) -> str:
    """Return the effect under the null as text, after "up to" if the null allows all smaller effects, too.

    Examples
    --------
    >>> allowed(1.0, at_most=False), allowed(0.0045, at_most=True)
    ('1', 'up to 0.0045')
    """
    return f"{'up to ' if at_most else ''}{number(null_effect)}"


def expected(null_effect: float | None, at_most: bool) -> str:
    """Return the effect under the null as text, such as "expected 1" or "allowed up to 0.0045".

    Examples
    --------
    >>> expected(1.0, at_most=False)
    'expected 1'
    """
    return f"{'allowed' if at_most else 'expected'} {allowed(null_effect, at_most)}"


class Verdict(StrEnum):
    """Verdict on a claim; only `CONSISTENT` is a pass.

    ``consistent``
        No deviation detected, down to the minimum detectable effect.
    ``violated``
        Deviation confirmed on fresh draws, within the run's false-alarm budget.
    ``not examined``
        Data not exposed, layer not supported, or too little power at an affordable size.
    ``inconclusive``
        No fresh draws available, and parts of the draws give different verdicts.
    ``explained``
        A pool (several cases tested together) that looks wrong because some of its cases are violated themselves.

    Examples
    --------
    >>> str(Verdict.NOT_EXAMINED)
    'not examined'
    """

    CONSISTENT = "consistent"
    VIOLATED = "violated"
    NOT_EXAMINED = "not examined"
    INCONCLUSIVE = "inconclusive"
    EXPLAINED = "explained"

    @classmethod
    def worst(cls, verdicts: Iterable[str]) -> Verdict:
        """Return the worst of several verdicts; `NOT_EXAMINED` if there are none.

        Examples
        --------
        >>> str(Verdict.worst(["consistent", "inconclusive", "not examined"]))
        'inconclusive'
        """
        present = set(verdicts)
        order = (cls.VIOLATED, cls.INCONCLUSIVE, cls.EXPLAINED, cls.CONSISTENT)
        return next((verdict for verdict in order if verdict in present), cls.NOT_EXAMINED)


@dataclass(frozen=True)
class Trail:
    """The outcomes of the looks at one statistic, and the verdict from them.

    Parameters
    ----------
    outcomes : tuple of Outcome
        One per look, in order; 1 to 4.
    verdict : Verdict
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
        """p-value of each look."""
        return tuple(outcome.p_value for outcome in self.outcomes)

    @property
    def combined(self) -> float:
        """Combined p-value max(p₁, p₂, p₃)³ of the first three looks, or 1 after fewer looks.

        It is valid because three independent p-values are all below t with chance at most t³. It ranks statistics but
        does not decide the verdict, and may be large if the fourth look decided.
        """
        return max(self.p_values[:3]) ** 3 if len(self.outcomes) >= 3 else 1.0

    @property
    def last(self) -> Outcome:
        """Outcome of the deciding look."""
        return self.outcomes[-1]
