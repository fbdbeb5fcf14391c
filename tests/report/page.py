"""Pages of records, parsed."""

from __future__ import annotations

import functools
from html.parser import HTMLParser
from pathlib import Path

from attncheck.report.page import render_report


class Parsed(HTMLParser):
    """The elements of a page, those of its verdict in order, and its texts by section."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.first: list[str] = []
        self._section = ""
        self._texts: dict[str, list[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self._section = str(attributes["id"]) if tag == "section" else self._section
        if self._section == "verdict":
            self.first.append(f"{tag}.{attributes['class']}" if attributes.get("class") else tag)

    def handle_endtag(self, tag: str) -> None:
        self._section = "" if tag == "section" else self._section

    def handle_data(self, data: str) -> None:
        for name in {"", self._section}:
            self._texts.setdefault(name, []).append(data)

    def text(self, section: str = "") -> str:
        """Return the text of a section, or of the page."""
        return " ".join(" ".join(self._texts.get(section, [])).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@functools.cache
def render(record: Path) -> Parsed:
    return Parsed(render_report(record, out=record.with_suffix(".html")).read_text(encoding="utf-8"))
