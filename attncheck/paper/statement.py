"""Texts of a figure: rows of its table, and descriptions of panels."""

from __future__ import annotations

import msgspec


class PaperStatement(msgspec.Struct, frozen=True):
    """A published statement, its estimate or prediction, and the computed value."""

    published: str
    estimated: str
    computed: str


class PanelText(msgspec.Struct, frozen=True):
    """Title and caption of a panel."""

    title: str
    caption: str

    def __str__(self) -> str:
        return f"{self.title}. {self.caption}."
