"""Drawings as data URIs: small, the same bytes every time, and in the page's colours, light or dark.

An SVG in an ``<img>`` sees neither the page's style sheet nor its fonts, but it does see whether the reader
prefers dark pages. Colours are drawn as the light ones and made variables afterwards.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

PAPER, INK, MUTED, GRID = "#ffffff", "#1b1f24", "#59636e", "#d5dae0"
ACCENT, BAND, BAD = "#0b62c4", "#d8e6f6", "#b3261e"
#: Curves of one picture; they differ in lightness too, for those who do not see all colours.
SERIES = ("#0072b2", "#d55e00", "#007e5c", "#8a3f78")
_DARK = {
    PAPER: "#161a20",
    INK: "#e6e9ed",
    MUTED: "#a3adb8",
    GRID: "#3a424d",
    ACCENT: "#6cb0ff",
    BAND: "#22374d",
    BAD: "#ff8a80",
    **dict(zip(SERIES, ("#62b8ee", "#ff9a4d", "#41d3a6", "#e29bcb"), strict=True)),
}
_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": True,
    "figure.facecolor": PAPER,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 12.0,
    "axes.labelsize": 12.0,
    "xtick.labelsize": 11.0,
    "ytick.labelsize": 11.0,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "path.simplify": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "attncheck",
    "text.color": INK,
    "text.parse_math": False,  # names may hold dollar signs
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}
_NEEDLESS = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
# Hundredths of a pixel are enough for what is drawn; labels stay what they are.
_TAG, _LONG = re.compile(r"<[^>]*>"), re.compile(r"-?\b\d+\.\d{3,}")
#: No word on when and with what a drawing was made.
METADATA: dict[str, Any] = {"Creator": None, "Date": None, "Format": None, "Type": None}
# The share of a drawing that a second pair of axes takes, and how much of that lies between them.
_LOWER, _LOWER_GAP = 0.45, 0.15
# Labels of widths that fit.
_MOST_WIDTHS = 8
_DPI = 72  # an SVG's unit: sizes below are in CSS pixels


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A picture of the page.

    Attributes
    ----------
    source : str
        A data URI.
    alt : str
        What the picture says, in words and numbers.
    caption : str
        What the picture is.
    width, height : int
        In CSS pixels.
    """

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
    """Return what `paint` puts on a pair of axes.

    Parameters
    ----------
    paint : callable Axes -> None
    below : callable Axes -> None, optional
        What stands on a second pair below, with the same horizontal scale.
    alt, caption : str
        Of the `Drawing`.
    width, height : int
        In CSS pixels.
    margins : tuple of int
        Left, right, bottom and top, in pixels.
    """
    left, right, bottom, top = margins
    with style():
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
    return Drawing(_uri(_with_variables(buffer.getvalue().decode())), alt, caption, width, height)


def plain() -> FuncFormatter:
    """Return labels of numbers with a minus sign."""
    return FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−"))


def width_axis(axes: Axes, widths: NDArray[np.float64]) -> None:
    """Make the horizontal axis logarithmic, with labels at some of the widths."""
    known = np.unique(widths)
    step = -(-len(known) // _MOST_WIDTHS)
    axes.set(xscale="log", xlabel="width n", xlim=(0.75 * known[0], known[-1] / 0.75))
    axes.xaxis.set_major_locator(FixedLocator(list(known[::-1][::step][::-1])))
    axes.xaxis.set_major_formatter(plain())
    axes.xaxis.set_minor_locator(NullLocator())


@contextmanager
def style() -> Iterator[None]:
    """Draw as pictures of a page are drawn, whatever the settings of the user."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def _with_variables(svg: str) -> str:
    """Return the drawing with its colours as variables, and the values of a dark page."""
    for index, light in enumerate(_DARK):
        svg = re.sub(f"(fill|stroke): ?{light}", rf"\1:var(--c{index})", svg)
    bright = "".join(f"--c{index}:{light};" for index, light in enumerate(_DARK))
    dark = "".join(f"--c{index}:{color};" for index, color in enumerate(_DARK.values()))
    style = f"<style>svg{{{bright}}}@media screen and (prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    svg = re.sub(
        r"<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*|<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL
    )
    svg = _TAG.sub(_rounded, re.sub(r"\n\s*", "\n", svg))
    return svg.replace("<defs>", f"{style}<defs>", 1)


def _rounded(tag: re.Match[str]) -> str:
    return _LONG.sub(lambda found: f"{float(found[0]):.2f}", tag[0])


def _uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
