"""Notes of an inspection: findings with levels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

#: Levels of notes: an error, a choice that is an error unless it is intended, and any other finding.
WRONG, ASKS, NOTE = "wrong", "asks", "note"


@dataclasses.dataclass(frozen=True)
class Note:
    """One finding as a sentence, with its level.

    A user declares the intention behind a choice by one of the `expectations`, such as "scale" or the name of a
    parameter.
    """

    text: str
    level: str = NOTE
    expectations: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def confirmed(self, names: set[str]) -> Note:
        """Return the note, lowered to the level "note" if `names` contains one of its expectations.

        Examples
        --------
        >>> note = asks("scores times 1", "scale")
        >>> note.confirmed({"scale"}).level, note.confirmed({"mask"}).level
        ('note', 'asks')
        """
        return dataclasses.replace(self, level=NOTE) if names & {*self.expectations} else self


def wrong(text: str, *expectations: str) -> Note:
    """Return a note on an error, which the user can declare intended by one of the expectations."""
    return Note(text, WRONG, expectations)


def asks(text: str, *expectations: str) -> Note:
    """Return a note on a choice, which the user can declare intended by one of the expectations."""
    return Note(text, ASKS, expectations)


def wrong_first(notes: Iterable[Note]) -> list[Note]:
    """Return the notes with errors first, and otherwise in their order."""
    return sorted(notes, key=lambda note: note.level != WRONG)
