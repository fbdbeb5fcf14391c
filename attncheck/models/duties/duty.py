"""Result of measuring a property of whole models."""

from __future__ import annotations

import dataclasses
from typing import Any

from attncheck.frameworks.notes import Note

#: Outcomes of a measurement.
HOLDS, VIOLATED, NOT_EXAMINED = "holds", "violated", "not examined"


class NotExaminedError(Exception):
    """Raised if a property does not apply to a model, or cannot be measured; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class DutyResult:
    """Result of measuring a property of a model.

    Attributes
    ----------
    name : str
    notes : tuple of Note
        Violations.
    reason : str
        Why the property was not examined, or an empty string.
    """

    name: str
    notes: tuple[Note, ...] = ()
    reason: str = ""

    @property
    def outcome(self) -> str:
        """One of "holds", "violated" and "not examined"."""
        if self.notes:
            return VIOLATED
        return NOT_EXAMINED if self.reason else HOLDS

    def confirmed(self, names: set[str]) -> DutyResult:
        """Return the result; notes get the level "note" if the user's expectations `names` declare them as intended."""
        return dataclasses.replace(self, notes=tuple(note.confirmed(names) for note in self.notes))

    def unmet(self, expected: Any) -> str:
        """Return a sentence if the outcome is not the expected one, else an empty string.

        Examples
        --------
        >>> DutyResult("cache", reason="there is none").unmet(True), DutyResult("cache").unmet(True)
        ('cache: not examined: there is none', '')
        """
        if self.outcome == (HOLDS if expected else VIOLATED):
            return ""
        details = "; ".join(map(str, self.notes)) or self.reason
        return f"{self.name}: {self.outcome}{f': {details}' if details else ''}"
