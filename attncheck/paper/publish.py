"""The output files: figures as data and plots, numbers, and an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from attncheck._lib.files import write_whole
from attncheck.paper import numbers, plates, results
from attncheck.paper.figures import panels_of
from attncheck.paper.panel import Panel
from attncheck.paper.results import Shown
from attncheck.paper.run import PaperRun
from attncheck.paper.units import save

#: The HTML page, and the page of numbers.
PAGE, NUMBERS = "paper.html", "numbers.md"


def publish(names: Sequence[str], out: Path, data: Path, manifest: PaperRun) -> list[Path]:
    """Write the figures `names` and the pages of all figures of the run; return the written files.

    The bytes are reproducible. All tasks of `names` must be finished, with their files in `data`.
    """
    from attncheck.paper.page import render_paper

    written = [path for name in names for path in _figure(finished(name, data, manifest), out)]
    figures = [figure for figure in results.published(out) if belongs(figure, manifest)]
    page = write_whole(out / NUMBERS, numbers.markdown(figures).encode())
    return [*written, page, render_paper(out / PAGE, figures)]


def finished(name: str, data: Path, manifest: PaperRun) -> Shown:
    """Return a figure from its task files, with its statements and panel texts."""
    figure = results.gather(name, data, manifest)
    panels = [panel.text for panel in panels_of(figure)]
    return msgspec.structs.replace(figure, statements=numbers.statements_of(figure), panels=panels)


def belongs(figure: Shown, manifest: PaperRun) -> bool:
    """Return whether a figure belongs to a run."""
    theirs = (figure.seed, figure.scale, figure.versions)
    return theirs == (manifest.seed, manifest.scale, manifest.versions)


def _figure(figure: Shown, out: Path) -> list[Path]:
    panels: list[Panel] = panels_of(figure)
    title, stem = figure.title[0].upper() + figure.title[1:], out / figure.name
    return [
        save(stem.with_suffix(".npz"), results.arrays_of(figure)),
        write_whole(stem.with_suffix(".json"), results.encode(figure)),
        *(write_whole(stem.with_suffix(f".{kind}"), plate(panels, title)) for kind, plate in plates.PLATES.items()),
    ]
