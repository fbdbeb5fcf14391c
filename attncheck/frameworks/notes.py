"""Notes of an inspection."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable


@dataclasses.dataclass(frozen=True)
class Note:
    """One finding as a sentence.

    `blames` tells whether it reports an error; `convention`, whether it is right if intended, and an error if not.
    `expectations` names those that declare the convention: "scale", or the parameter of an initialiser.
    """

    text: str
    blames: bool = False
    convention: bool = False
    expectations: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


def confirmed(notes: Iterable[Note], names: Collection[str]) -> tuple[Note, ...]:
    """Return notes of which those on declared conventions no longer ask whether they are meant.

    Examples
    --------
    >>> note = Note("scores times 1", convention=True, expectations=("scale",))
    >>> confirmed([note], {"scale"})[0].convention, confirmed([note], {"mask"})[0].convention
    (False, True)
    """
    return tuple(
        dataclasses.replace(note, convention=note.convention and not {*note.expectations} & {*names}) for note in notes
    )
