"""Rendering: read records, fill templates, write one file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from attncheck._lib import text
from attncheck._lib.files import write_file
from attncheck.diagnosis.causes import sharpest
from attncheck.evidence.verdicts import expected
from attncheck.layers.names import layer_name
from attncheck.records.text import interval, label_of
from attncheck.report.view import FAILURES, HEADINGS, POOLS, PageView, looks, pairs, visits
from attncheck.runs.parts import read_run


def render_report(run: Path | Iterable[Path], out: Path) -> Path:
    """Render a run record as a page; the same records give the same bytes.

    Parameters
    ----------
    run : Path or iterable of Path
        The record, or records of the parts of a run.
    out : Path
        The page; missing folders are created.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    InputError
        If an input cannot be used or the page cannot be written.
    """
    record = read_run(run)
    context = {"headings": HEADINGS, "most_failures": FAILURES, "most_pools": POOLS}
    title = "Attention simulator against the infinite-width theorem"
    page = fill("report.html.j2", title, view=PageView(record), run=record, **context)
    return write_file(out, encoded(page))


def fill(template: str, title: str, **context: Any) -> str:
    """Return a template filled with the given values."""
    return _environment().get_template(template).render(title=title, **context)


def encoded(text: str) -> bytes:
    """Encode a page; lone surrogates, possible in names, become question marks."""
    return text.encode("utf-8", errors="replace")


def _environment() -> jinja2.Environment:
    package = Path(__file__).resolve().parents[1]
    folders = (package / "_reports", package.parent / "reports")  # installed, and in the repository
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder / "templates" for folder in folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= _FILTERS
    return environment


_FILTERS: dict[str, Any] = {
    "number": text.number,
    "chance": text.chance,
    "counted": text.counted,
    "span": text.span,
    "layer": layer_name,
    "expected": expected,
    "interval": interval,
    "reads": label_of,
    "printable": text.printable,
    "looks": looks,
    "sharpest": sharpest,
    "capitalized": lambda text: text[:1].upper() + text[1:],
    "visits": visits,
    "pairs": pairs,
}
