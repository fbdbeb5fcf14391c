"""Whole figures, all panels together, as SVG and PDF; the same numbers give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from attncheck.paper.figures import Panel
from attncheck.report.svg import METADATA, style

_SIZE = (13.0, 9.0)
_COLUMNS = 2


def svg_of(panels: Sequence[Panel], title: str) -> bytes:
    """Return a figure as SVG, its texts as texts."""
    with style():
        figure = _drawn(panels, title)
        FigureCanvasSVG(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata=METADATA)
    return buffer.getvalue()


def pdf_of(panels: Sequence[Panel], title: str) -> bytes:
    """Return a figure as PDF, its fonts embedded."""
    with style():
        matplotlib.rcParams["pdf.fonttype"] = 42
        figure = _drawn(panels, title)
        FigureCanvasPdf(figure)
        buffer = io.BytesIO()
        metadata = {"Title": title, "Creator": "attncheck", "Producer": None, "CreationDate": None}
        figure.savefig(buffer, format="pdf", metadata=metadata)
    return buffer.getvalue()


def _drawn(panels: Sequence[Panel], title: str) -> Figure:
    rows = -(-len(panels) // _COLUMNS)
    figure = Figure(figsize=_SIZE)
    figure.suptitle(title, x=0.01, ha="left", fontsize=15)
    grid = figure.add_gridspec(
        rows, _COLUMNS, left=0.075, right=0.985, top=0.89, bottom=0.075, hspace=0.36, wspace=0.22
    )
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(grid[divmod(place, _COLUMNS)])
        panel.paint(axes)
        axes.set_title(panel.text.title, loc="left", fontsize=13)
    return figure
