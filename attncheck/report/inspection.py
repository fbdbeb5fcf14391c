"""HTML page of an inspection, with the printed output."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attncheck._lib.files import write_whole
from attncheck.frameworks.printed import PrintedInspection
from attncheck.report import DEFAULT_RECIPE
from attncheck.report.page import encoded, fill
from attncheck.report.recipe import load


def render_inspection(found: PrintedInspection, name: str, out: Path, theory: bool = False) -> Path:
    """Write a self-contained page on a layer or model made by `name`, with theoretical predictions if `theory`."""
    lines = found.told + (found.predicted if theory else [])
    recipe = msgspec.structs.replace(load(DEFAULT_RECIPE), title="Inspection", template="inspection.html.j2")
    return write_whole(out, encoded(fill(recipe, found=found, name=name, lines=lines)))
