"""Pages of records, parsed."""

from __future__ import annotations

import functools
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from attncheck.report import render_report


class Parsed(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.first: list[str] = []  # elements of the verdict, in order
        self._text: list[str] = []
        self._section = ""
        self._sections: dict[str, list[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._section = str(dict(attrs)["id"]) if tag == "section" else self._section
        if self._section == "verdict":
            self.first.append(f"{tag}.{dict(attrs).get('class')}" if dict(attrs).get("class") else tag)

    def handle_endtag(self, tag: str) -> None:
        self._section = "" if tag == "section" else self._section

    def handle_data(self, data: str) -> None:
        self._text.append(data)
        self._sections.setdefault(self._section, []).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._text).split())

    def section(self, name: str) -> str:
        return " ".join(" ".join(self._sections.get(name, [])).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@functools.cache
def render(record: Path, **options: Any) -> Parsed:
    out = record.with_suffix(".html")
    render_report(record, out=out, **options)
    return Parsed(out.read_text(encoding="utf-8"))


def in_order(found: list[str], *wanted: str) -> bool:
    """Return whether elements come in this order, with gaps."""
    rest = iter(found)
    return all(any(each == name for each in rest) for name in wanted)
