"""Base class of inspection results: notes and printed text."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from attncheck._lib.text import aligned, counted
from attncheck.frameworks.notes import ASKS, WRONG, Note


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
        more = len(self.blamed) - 1
        return f"WRONG: {self.blamed[0]}" + (f" (and {counted(more, 'more error')} below)" if more else "")

    @property
    def _question(self) -> str:
        """End of the verdict that quotes the first note on an undeclared choice; empty without such notes."""
        return next((f", if this is meant: {text}" for text in self.asked), "")

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
