"""Notes of an inspection."""

from __future__ import annotations

import dataclasses


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

    def confirmed(self, names: set[str]) -> Note:
        """Return the note, no longer as a convention if one of the named expectations declares it.

        Examples
        --------
        >>> note = Note("scores times 1", convention=True, expectations=("scale",))
        >>> note.confirmed({"scale"}).convention, note.confirmed({"mask"}).convention
        (False, True)
        """
        return dataclasses.replace(self, convention=self.convention and not names & {*self.expectations})
