"""Notes of an inspection."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Note:
    """One finding as a sentence.

    `blames` tells whether it reports an error; `convention`, whether it is right if intended, and an error if not.
    """

    text: str
    blames: bool = False
    convention: bool = False

    def __str__(self) -> str:
        return self.text
