"""Whole figures as SVG, PDF and PNG with reproducible bytes."""

from __future__ import annotations

import io
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from attncheck.paper.panel import Panel
from attncheck.report.svg import METADATA, style

_SIZE = (13.0, 9.0)
_COLUMNS = 2
# Resolution of bitmaps, in dots per inch.
_DPI = 150


#: Function that renders panels under a title to bytes.
Plate = Callable[[Sequence[Panel], str], bytes]


def _svg(panels: Sequence[Panel], title: str) -> bytes:
    """Return a figure as SVG with text elements."""
    return _saved(panels, title, FigureCanvasSVG, "svg", METADATA)


def _pdf(panels: Sequence[Panel], title: str) -> bytes:
    """Return a figure as PDF with embedded fonts."""
    metadata = {"Title": title, "Creator": "attncheck", "Producer": None, "CreationDate": None}
    return _saved(panels, title, FigureCanvasPdf, "pdf", metadata)


def _png(panels: Sequence[Panel], title: str) -> bytes:
    """Return a figure as PNG."""
    return _saved(panels, title, FigureCanvasAgg, "png", {"Title": title, "Software": "attncheck"})


#: Renderers by file suffix.
PLATES: Mapping[str, Plate] = {"svg": _svg, "pdf": _pdf, "png": _png}


def _saved(
    panels: Sequence[Panel], title: str, canvas: type[FigureCanvasBase], kind: str, metadata: Mapping[str, Any]
) -> bytes:
    with style():
        matplotlib.rcParams["pdf.fonttype"] = 42
        figure = _drawn(panels, title)
        canvas(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=dict(metadata), dpi=_DPI)
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
        axes.set_title(f"({string.ascii_lowercase[place]}) {_said(panel)}", loc="left", fontsize=13)
    return figure


def _said(panel: Panel) -> str:
    """Return a panel's title without the prefix that names the source of its numbers."""
    what = panel.text.title.partition(": ")[2]
    return what[0].upper() + what[1:]
