"""Panels of figures, and their axis labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

STYLES = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D")
SMALL = 10.5
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot: title, caption, and a function that paints it on axes."""

    title: str
    caption: str
    paint: Callable[[Axes], None]

    def __str__(self) -> str:
        return f"{self.title}. {self.caption}."


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
