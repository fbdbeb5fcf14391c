"""Plots as reproducible SVG data URIs, dark on white."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Callable
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK, MUTED, GRID = "#1b1f24", "#59636e", "#d5dae0"
ACCENT, BAND, BAD = "#0b62c4", "#d8e6f6", "#b3261e"
#: Line colours, distinct in lightness for colour-blind readers.
SERIES = ("#0072b2", "#d55e00", "#007e5c", "#8a3f78")
_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 12.0,
    "axes.labelsize": 12.0,
    "xtick.labelsize": 11.0,
    "ytick.labelsize": 11.0,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "attncheck",
    "text.color": INK,
    "text.parse_math": False,  # mathematical typesetting is off, because names may contain dollar signs
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}
#: Metadata without entries that change between runs.
METADATA: dict[str, Any] = {"Creator": None, "Date": None, "Format": None, "Type": None}
# Heights of the lower axes and of the gap above them, as fractions of the total height.
_LOWER, _LOWER_GAP = 0.45, 0.15
_DPI = 72  # SVG units: sizes below are in CSS pixels


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A plot as data URI, with alternative text, caption and size in CSS pixels."""

    source: str
    alt: str
    caption: str
    width: int
    height: int


def draw(
    paint: Callable[[Axes], None],
    alt: str,
    caption: str,
    *,
    width: int = 440,
    height: int = 270,
    margins: tuple[int, int, int, int] = (66, 12, 48, 10),
    below: Callable[[Axes], None] | None = None,
) -> Drawing:
    """Return the drawing that `paint` makes on a pair of axes.

    `below`, if given, paints a second pair of axes below the first, with the same horizontal scale. `margins` are left,
    right, bottom and top; sizes are in CSS pixels.
    """
    left, right, bottom, top = margins
    with style.context(_SETTINGS, after_reset=True):  # independently of the user's settings
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        FigureCanvasSVG(figure)
        room = (height - bottom - top) / height
        lower = _LOWER * room if below else 0.0
        frame = left / width, (width - left - right) / width
        axes = figure.add_axes((frame[0], bottom / height + lower, frame[1], room - lower))
        if below:
            second = figure.add_axes((frame[0], bottom / height, frame[1], lower * (1.0 - _LOWER_GAP)), sharex=axes)
            below(second)
            axes.tick_params(labelbottom=False)
        paint(axes)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata=METADATA)
    source = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Drawing(source, alt, caption, width, height)


def plain() -> FuncFormatter:
    """Return a tick formatter with proper minus signs."""
    return FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−"))
