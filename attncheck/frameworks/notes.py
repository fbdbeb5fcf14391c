"""Notes of an inspection."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Note:
    """One finding as a sentence.

    `blames` marks an error, and `convention` a choice that is right if it is intended, and an error otherwise. A user
    declares the intention by one of the `expectations`, such as "scale" or the name of a parameter.
    """

    text: str
    blames: bool = False
    convention: bool = False
    expectations: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def confirmed(self, names: set[str]) -> Note:
        """Return the note, no longer marked as a convention if `names` contains one of its expectations.

        Examples
        --------
        >>> note = Note("scores times 1", convention=True, expectations=("scale",))
        >>> note.confirmed({"scale"}).convention, note.confirmed({"mask"}).convention
        (False, True)
        """
        return dataclasses.replace(self, convention=self.convention and not names & {*self.expectations})
