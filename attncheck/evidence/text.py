"""Text for the effect that a null expects."""

from __future__ import annotations

from typing import Protocol

from attncheck._lib.text import number


class OutcomeLike(Protocol):
    """Test outcome, or recorded result."""

    @property
    def null_effect(self) -> float | None:
        """Effect under the null, or the largest allowed."""

    @property
    def at_most(self) -> bool:
        """Whether the null allows every effect up to `null_effect`."""


def allowed(outcome: OutcomeLike) -> str:
    """Return the effect under the null, or the largest allowed, as text.

    Examples
    --------
    >>> from attncheck.evidence.family import Outcome
    >>> allowed(Outcome(0.5, 1.02, 0.9, 1.1, null_effect=1.0, count=9))
    '1'
    >>> allowed(Outcome(1.0, 0.0, 0.0, 0.003, null_effect=0.0045, count=9, at_most=True))
    'up to 0.0045'
    """
    return f"{'up to ' if outcome.at_most else ''}{number(outcome.null_effect)}"


def expected(outcome: OutcomeLike) -> str:
    """Return the text of `allowed` after "expected" or "allowed".

    Examples
    --------
    >>> from attncheck.evidence.family import Outcome
    >>> expected(Outcome(0.5, 1.02, 0.9, 1.1, null_effect=1.0, count=9))
    'expected 1'
    """
    return f"{'allowed' if outcome.at_most else 'expected'} {allowed(outcome)}"
