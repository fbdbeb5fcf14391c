"""Panels of figures, and their axis labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from attncheck.paper.charts import Chart, told
from attncheck.paper.statement import PanelText
from attncheck.report.svg import INK, SERIES

STYLES = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D")
SMALL = 10.5
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Lines have one more colour than points.
_COLOURS = (*SERIES, INK)


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot: a function that paints it on axes, and its texts."""

    text: PanelText
    paint: Callable[[Axes], None]


def panel_of(chart: Chart) -> Panel:
    """Return the panel of a chart, with points at finite width and lines for laws."""
    points = [each for each in chart.series if not each.law]
    lines = [each for each in chart.series if each.law]

    def paint(axes: Axes) -> None:
        for each, color, line in zip(lines, [INK] * len(lines) if points else _COLOURS, STYLES, strict=False):
            axes.plot(each.x, each.value, color=color, linestyle=line, linewidth=1.4, label=each.label)
        for each, color, marker in zip(points, SERIES, MARKERS, strict=False):
            axes.errorbar(
                each.x, each.value, each.error, fmt=f"{marker}-", color=color,
                markersize=5, linewidth=1.0, capsize=3, label=each.label,
            )  # fmt: skip
        axes.set(xscale=chart.xscale, yscale=chart.yscale, xlabel=chart.xlabel, ylabel=chart.ylabel)
        if chart.yscale == "log":
            axes.yaxis.set_major_formatter(FuncFormatter(_plain))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if chart.xscale == "log":
            places = sorted({x for each in chart.series for x in each.x})
            axes.xaxis.set_major_locator(FixedLocator(places[:: 1 + len(places) // 6]))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(True, axis="y")
        axes.legend(loc="best", fontsize=SMALL, edgecolor="none", framealpha=0.85, handlelength=2.4)

    read = "; ".join(f"{each.label}: {told(each, 0)}, {told(each, -1)}" for each in chart.series)
    alt = f"{chart.ylabel} against {chart.xlabel}, its first and its last value for each series. {read}."
    return Panel(PanelText(f"Computed: {chart.title}", chart.caption, alt), paint)


def powers(axes: Axes, *, both: bool = False, across: bool = True) -> None:
    """Label the vertical logarithmic axis, or `both` axes, with powers of ten."""
    for axis in (axes.yaxis, axes.xaxis) if both else (axes.yaxis,):
        axis.set_major_formatter(FuncFormatter(_power))
        axis.set_minor_formatter(NullFormatter())
    if across:
        axes.grid(True, axis="y")


def plain_numbers(axes: Axes) -> None:
    """Label the vertical axis with plain numbers."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}".replace("-", "−")))
    axes.grid(True, axis="y")


def _power(value: float, _: object = None) -> str:
    """Return the label of a power of ten, or an empty string for other numbers."""
    exponent = np.log10(value)
    return f"10{str(round(exponent)).translate(_SUPERSCRIPTS)}" if abs(exponent - round(exponent)) < 1e-9 else ""


def _plain(value: float, _: object = None) -> str:
    """Return a label in plain digits near 1, else a power of ten."""
    return f"{value:g}" if 1e-3 < value < 1e4 else _power(value)
