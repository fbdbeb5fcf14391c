"""Sentences of an inspection: what is found, and whether it says that something is wrong."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Note:
    """One sentence.

    Attributes
    ----------
    text : str
    blames : bool
        Whether it says that something is wrong.
    """

    text: str
    blames: bool = False

    def __str__(self) -> str:
        return self.text
