"""The paper's experiments as a page of plots and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from attncheck._lib.files import write_whole
from attncheck.paper.figures import panels_of
from attncheck.paper.numbers import COLUMNS, made_with, markdown, named, size_of, statements_of
from attncheck.paper.results import Figure, encode, gather
from attncheck.paper.run import PaperRun
from attncheck.paper.statement import PaperStatement
from attncheck.paper.units import Arrays, Task
from attncheck.report.page import encoded, fill
from attncheck.report.svg import Drawing, draw

#: The HTML page, and the page of numbers.
PAGE, NUMBERS = "paper.html", "numbers.md"
_WIDTH, _HEIGHT = 520, 340
_MARGINS = (78, 14, 50, 14)


@dataclasses.dataclass(frozen=True, eq=False)
class ExperimentView:
    """One figure, with the texts and drawings that page templates show."""

    figure: Figure

    @property
    def name(self) -> str:
        """The figure's name on the command line."""
        return self.figure.name

    @property
    def title(self) -> str:
        """The figure's number in the paper, and its topic."""
        return named(self.figure)

    @property
    def size(self) -> str:
        """The sampled and published sizes, and the command to repeat."""
        return size_of(self.figure)

    @property
    def columns(self) -> tuple[str, str, str]:
        """The column titles of the figure's statements."""
        return COLUMNS

    @property
    def statements(self) -> Sequence[PaperStatement]:
        """The figure's statements, with numbers."""
        return self.figure.statements

    @cached_property
    def drawings(self) -> list[Drawing]:
        """The panels, each published one followed by its computed counterpart."""
        return [
            draw(
                panel.paint,
                f"{self.title}: {panel.text}",
                str(panel.text),
                width=_WIDTH,
                height=_HEIGHT,
                margins=_MARGINS,
            )
            for panel in panels_of(self.figure)
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class PaperView:
    """All figures of one run of `attncheck paper`."""

    experiments: tuple[ExperimentView, ...]

    @property
    def made(self) -> str:
        """A sentence on how the numbers were made."""
        return made_with(self.experiments[0].figure)

    @property
    def scale(self) -> float:
        """Number of draws, as a share of the published number."""
        return self.experiments[0].figure.scale


def view_of(figures: Sequence[Figure]) -> PaperView:
    """Return the view of a run's figures for page templates."""
    return PaperView(tuple(ExperimentView(figure) for figure in figures))


def render_paper(out: Path, figures: Sequence[Figure]) -> Path:
    """Write an HTML page of figures, without a run record."""
    title = "The paper's experiments, and what they could not show"
    return write_whole(out, encoded(fill("paper.html.j2", title, paper=view_of(figures))))


def write_pages(names: Sequence[str], out: Path, found: Mapping[Task, Arrays], manifest: PaperRun) -> list[Path]:
    """Write the figures `names` as JSON, and both pages of all of them; return the paths of the pages.

    `found` has the results of all tasks of the figures. The bytes are reproducible.
    """
    figures = [finished(name, found, manifest) for name in names]
    for figure in figures:
        write_whole(out / f"{figure.name}.json", encode(figure))
    page = write_whole(out / NUMBERS, markdown(figures).encode())
    return [page, render_paper(out / PAGE, figures)]


def finished(name: str, found: Mapping[Task, Arrays], manifest: PaperRun) -> Figure:
    """Return a figure with its statements and panel texts."""
    figure = gather(name, found, manifest)
    panels = [panel.text for panel in panels_of(figure)]
    return msgspec.structs.replace(figure, statements=statements_of(figure), panels=panels)
