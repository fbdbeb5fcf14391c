"""Notes of an inspection."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Note:
    """One finding as a sentence; `blames`: whether it reports an error."""

    text: str
    blames: bool = False

    def __str__(self) -> str:
        return self.text
