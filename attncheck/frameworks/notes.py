"""Notes of an inspection, which are findings with levels, and the base class of inspections that print them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from attncheck._lib.text import aligned, counted

#: Levels of notes: an error, a choice that is an error unless it is intended, and any other finding.
WRONG, ASKS, NOTE = "wrong", "asks", "note"


@dataclasses.dataclass(frozen=True)
class Note:
    """One finding as a sentence, with its level.

    `expectations` are names, such as "scale" or that of a parameter, with which a user can declare that the finding is
    intended.
    """

    text: str
    level: str = NOTE
    expectations: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def confirmed(self, names: set[str]) -> Note:
        """Return the note; its level becomes "note" if the user declared one of its `expectations` in `names`.

        Examples
        --------
        >>> note = asks("scores times 1", "scale")
        >>> note.confirmed({"scale"}).level, note.confirmed({"mask"}).level
        ('note', 'asks')
        """
        return dataclasses.replace(self, level=NOTE) if names & {*self.expectations} else self


def wrong(text: str, *expectations: str) -> Note:
    """Return a note on an error; `expectations` are names with which the user can declare it as intended."""
    return Note(text, WRONG, expectations)


def asks(text: str, *expectations: str) -> Note:
    """Return a note on a choice; `expectations` are names with which the user can declare it as intended."""
    return Note(text, ASKS, expectations)


def wrong_first(notes: Iterable[Note]) -> list[Note]:
    """Return the notes with errors first, and otherwise in their order."""
    return sorted(notes, key=lambda note: note.level != WRONG)


class PrintedInspection(abc.ABC):
    """Base class of inspections, which can be printed as text and converted to built-in types."""

    notes: tuple[Note, ...]

    @property
    def all_notes(self) -> Sequence[Note]:
        """All notes, in the order in which they are printed."""
        return self.notes

    @property
    @abc.abstractmethod
    def headline(self) -> str:
        """One line on the inspected layer or model."""

    @property
    @abc.abstractmethod
    def tables(self) -> Mapping[str, list[tuple[str, ...]]]:
        """Tables by title, each a list of rows of text that starts with the heading."""

    @abc.abstractmethod
    def _fields(self) -> dict[str, Any]:
        """Return all fields, as dataclasses and built-in types."""

    @property
    def examined(self) -> str:
        """The part that the verdict covers, as text; empty if it covers everything."""
        return ""

    @property
    def not_examined(self) -> bool:
        """Whether no attention was found, so that the inspection cannot pass."""
        return False

    @property
    def blamed(self) -> tuple[str, ...]:
        """Texts of the notes that report an error."""
        return tuple(str(note) for note in self.all_notes if note.level == WRONG)

    @property
    def asked(self) -> tuple[str, ...]:
        """Texts of the notes on undeclared choices, which are errors unless they are intended."""
        return tuple(str(note) for note in self.all_notes if note.level == ASKS)

    @property
    def verdict(self) -> str:
        """The first error and the number of others, or a statement that nothing wrong was found."""
        if not self.blamed:
            return f"{self.headline}: nothing wrong was found{self.examined}{self._question}"
        return f"WRONG: {_first_of(self.blamed, 'error')}"

    @property
    def _question(self) -> str:
        """End of the verdict that quotes the first note on an undeclared choice; empty without such notes."""
        return f", if this is meant: {_first_of(self.asked, 'question')}" if self.asked else ""

    @property
    def told(self) -> list[tuple[str, str]]:
        """Lines below the tables, as pairs of the level of a note and its text."""
        return [(note.level, str(note)) for note in self.all_notes]

    def __str__(self) -> str:
        return self.text()

    def text(self, unexpected: Sequence[str] = ()) -> str:
        """Return the inspection as text, unmet expectations first."""
        lines = [*(f"NOT AS EXPECTED: {line}" for line in unexpected), *[""] * bool(unexpected)]
        if self.blamed:
            lines += [self.verdict, "", self.headline, ""]
        else:
            question = "" if set(self.asked) & set(unexpected) else self._question
            lines += [f"{self.headline}{question}" if unexpected else self.verdict, ""]
        for rows in self.tables.values():
            lines += [*aligned(rows), ""]
        return "\n".join(lines + [f"{label}: {text}" for label, text in self.told])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as built-in types, with None for non-finite numbers."""
        fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self._fields(), enc_hook=float))
        return fields


def _first_of(texts: Sequence[str], noun: str) -> str:
    """Return the first text and the number of others, which `noun` names."""
    more = len(texts) - 1
    return texts[0] + (f" (and {counted(more, f'more {noun}')} below)" if more else "")
