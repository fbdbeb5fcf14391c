"""The paper's experiments as a page of plots and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attncheck._lib.files import write_file
from attncheck.paper.figures import panels_of
from attncheck.paper.numbers import COLUMNS, computed_with, markdown, named, size_of, statements_of
from attncheck.paper.results import Figure, gather
from attncheck.paper.run import PaperRun
from attncheck.paper.units import Arrays, Task
from attncheck.report.page import encoded, fill
from attncheck.report.svg import draw

#: The HTML page, and the page of numbers.
PAGE, NUMBERS = "paper.html", "numbers.md"
_SIZE: dict[str, Any] = {"width": 520, "height": 340, "margins": (78, 14, 50, 14)}


def write_pages(names: Sequence[str], out: Path, results: Mapping[Task, Arrays], manifest: PaperRun) -> list[Path]:
    """Write the page of numbers and the HTML page for the figures `names`; return both paths.

    `results` holds the results of all tasks of the figures. The files are reproducible byte for byte.
    """
    figures = [gather(name, results, manifest) for name in names]
    page = write_file(out / NUMBERS, markdown(figures).encode())
    return [page, render_paper(out / PAGE, figures)]


def render_paper(out: Path, figures: Sequence[Figure]) -> Path:
    """Write an HTML page of figures."""
    title = "The paper's experiments, and what they could not show"
    paper = {
        "scale": figures[0].run.scale,
        "made": computed_with(figures[0].run),
        "experiments": list(map(_display, figures)),
    }
    return write_file(out, encoded(fill("paper.html.j2", title, paper=paper)))


def _display(figure: Figure) -> dict[str, Any]:
    """Return the texts and drawings of a figure that the page template shows."""
    return {
        "name": figure.experiment.name,
        "title": named(figure),
        "size": size_of(figure),
        "columns": COLUMNS,
        "statements": statements_of(figure),
        "drawings": [
            draw(panel.paint, f"{named(figure)}: {panel}", str(panel), **_SIZE) for panel in panels_of(figure)
        ],
    }
