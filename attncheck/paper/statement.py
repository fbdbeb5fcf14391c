"""What a figure says in words: rows of its table, and what a panel is."""

from __future__ import annotations

import msgspec


class PaperStatement(msgspec.Struct, frozen=True):
    """A statement, and what is computed; between them what the paper's estimator says here, or what theory predicts."""

    published: str
    estimated: str
    computed: str


class PanelText(msgspec.Struct, frozen=True):
    """What a panel is and says, for those who do not see it."""

    title: str
    caption: str
    alt: str
