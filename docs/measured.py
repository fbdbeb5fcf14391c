"""Checks the numbers that pages of the documentation quote from pages of measurements, while it is built.

``[155 of 165](../benchmarks/evidence.md "above 99.9%")`` quotes a number: some line of that page has the text in
brackets, and the words in quotation marks if there are any. The built page shows the text without the link, as it has
no pages of measurements.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_QUOTE = re.compile(r'\[(?P<text>[^\]]+)\]\(\.\./(?P<page>benchmarks/\w+\.md)(?: "(?P<words>[^"]+)")?\)')
_ROOT = Path(__file__).resolve().parents[1]


def unquoted(source: str, root: Path = _ROOT) -> tuple[str, list[str]]:
    """Return a page without links to measurements, and a message per quote that is not there."""
    wrong = []

    def replaced(quote: re.Match[str]) -> str:
        wanted = [" ".join(each.split()) for each in (quote["text"], quote["words"]) if each]
        # Not as a part of a longer number.
        patterns = [re.compile(rf"(?<![\d.,]){re.escape(each)}(?!\d)") for each in wanted]
        page = root / quote["page"]
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        lines = [" ".join(line.split()) for line in text.splitlines()]
        if not any(all(each.search(line) for each in patterns) for line in lines):
            wrong.append(f"{quote['page']} has no line with {' and '.join(map(repr, wanted))}; quote what it measures")
        return quote["text"]

    return _QUOTE.sub(replaced, source), wrong


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    from sphinx.util import logging

    source[0], wrong = unquoted(source[0])
    for message in wrong:
        logging.getLogger(__name__).warning(message, location=name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
