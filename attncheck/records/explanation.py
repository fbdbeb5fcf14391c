"""Explanations: what may be wrong with a subject, where in its computation, and how sure that is."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Certainty(StrEnum):
    """How an explanation was obtained.

    OBSERVED
        A fact about the subject that need not be the cause, such as a field that it does not read.
    IDENTIFIED
        The cause, because a simulator with it answers exactly as the subject does.
    EXACT
        A deviation from the declaration, found without statistics.
    FITTED
        A fault whose draws cannot be told from the subject's.
    ESTIMATED
        A number whose interval excludes the declared value.
    HINTED
        A frequent cause of violations of the same check.
    """

    OBSERVED = "observed"
    IDENTIFIED = "identified"
    EXACT = "exact"
    FITTED = "fitted"
    ESTIMATED = "estimated"
    HINTED = "hinted"


_WEAKER = frozenset({Certainty.ESTIMATED, Certainty.HINTED})
_EXCLUDED = {
    Certainty.IDENTIFIED: _WEAKER | {Certainty.FITTED},
    Certainty.EXACT: _WEAKER,
    Certainty.FITTED: _WEAKER,
}


class Explanation(msgspec.Struct, frozen=True):
    """An explanation of violated results.

    Attributes
    ----------
    text : str
    certainty : Certainty
    stage : str
        Stage of the computation where the subject deviates (`attncheck.checks.declared`). It is empty if the stage is
        not known, or if the text names it.
    plot : Plot or dict, optional
        Plot of the subject's numbers beside the declared ones; in a record, it consists of built-in types.

    Examples
    --------
    >>> print(Explanation("they grow 2 times when all inputs are doubled", Certainty.EXACT, "scores"))
    scores: they grow 2 times when all inputs are doubled
    """

    text: str
    certainty: Certainty
    stage: str = ""
    plot: Any = None

    @property
    def excluded(self) -> frozenset[Certainty]:
        """The kinds of explanations that are not needed beside this one."""
        if self.certainty == Certainty.ESTIMATED and self.stage:
            return frozenset({Certainty.HINTED})
        return _EXCLUDED.get(self.certainty, frozenset())

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}" if self.stage else self.text


def exact(stage: str, text: str, plot: Any = None) -> Explanation:
    """Return an exact deviation at a stage of the computation."""
    return Explanation(text, Certainty.EXACT, stage, plot)
