"""Numbers, counts and lists formatted for readers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# Control characters, line separators, and marks that reorder the text around them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# Text that GitHub takes for a workflow command: the first at the start of a line, the second anywhere.
_COMMAND = re.compile(r"(?<![\w.)\]])::|##\[")


def number(value: float | None) -> str:
    """Format a number with four significant digits; None as a dash.

    Examples
    --------
    >>> number(1234567.0), number(0.25), number(None)
    ('1.235e+06', '0.25', '–')
    """
    return "–" if value is None else f"{value:.4g}"


def chance(value: float | None) -> str:
    """Format a p-value with two significant digits.

    Examples
    --------
    >>> chance(0.000123), chance(0.0)
    ('0.00012', '<1e-300')
    """
    if value is None:
        return "–"
    return "<1e-300" if value < 1e-300 else f"{value:.2g}"


def mde_text(mde: float | None) -> str:
    """Format a minimum detectable effect; None and infinity as "nothing".

    Examples
    --------
    >>> mde_text(0.0123), mde_text(None), mde_text(math.inf)
    ('0.0123', 'nothing', 'nothing')
    """
    return "nothing" if mde is None or math.isinf(mde) else f"{mde:.3g}"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun, pluralised.

    Examples
    --------
    >>> counted(1, "layer"), counted(12000, "layer")
    ('1 layer', '12,000 layers')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Iterable[Any]) -> str:
    """Join names with commas and "and".

    Examples
    --------
    >>> listed(["key_gram", "scores", "value_gram"]), listed([1])
    ('key_gram, scores and value_gram', '1')
    """
    *rest, last = map(str, names)
    return f"{', '.join(rest)} and {last}" if rest else last


def first_few(names: Iterable[str], most: int = 3) -> str:
    """Join the first names with commas and "and", and count the others.

    Examples
    --------
    >>> first_few(["a", "b", "c", "d", "e"]), first_few(["a", "b"])
    ('a, b, c and 2 more', 'a and b')
    """
    known = list(names)
    more = [f"{len(known) - most} more"] if len(known) > most else []
    return listed(known[:most] + more)


def span(values: list[Any]) -> str:
    """Format a list [smallest, largest] as a range; an empty list as a dash.

    Examples
    --------
    >>> span([1.0, 2.5]), span([3, 3]), span([])
    ('1 to 2.5', '3', '–')
    """
    texts = [f"{value:,}" if isinstance(value, int) else number(value) for value in values]
    return " to ".join(dict.fromkeys(texts)) or "–"


def printable(text: str, most: int = 200) -> str:
    """Replace control characters and shorten a text to `most` characters.

    Examples
    --------
    >>> printable(f"a{chr(0)}b") == f"a{chr(0xFFFD)}b", printable("abcdef", 4)
    (True, 'abc…')
    """
    characters = "".join(char if char.isprintable() else "\ufffd" for char in text[: most + 1])
    return characters if len(text) <= most else characters[: most - 1] + "…"


def inert(value: Any) -> Any:
    """Replace control characters and GitHub workflow commands in all texts of a value of built-in types.

    Code that reads files applies this to names and texts, because they are shown in terminals and logs.

    Examples
    --------
    >>> inert({"name": [f"red{chr(10)}line", 0.5]})
    {'name': ['red line', 0.5]}
    >>> inert("::error::forged, and test_it.py::test") == f"{chr(0xFFFD)}error::forged, and test_it.py::test"
    True
    """
    if isinstance(value, str):
        text = _CONTROL.sub(lambda match: " " if match[0].isspace() else "\ufffd", value)
        return _COMMAND.sub("\ufffd", text)
    if isinstance(value, dict):
        return {inert(name): inert(entry) for name, entry in value.items()}
    return [inert(entry) for entry in value] if isinstance(value, list) else value


def aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns.

    Examples
    --------
    >>> list(aligned([("", "law"), ("W_Q", "normal")]))
    ['     law', 'W_Q  normal']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def as_json(document: Any) -> str:
    """Return indented, readable JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
