"""HTML page of width exponents: a table and a plot for sizes at initialisation, and for changes after each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from attncheck._lib.arrays import FloatArray
from attncheck._lib.files import write_file
from attncheck._lib.text import counted
from attncheck.evidence.verdicts import Verdict
from attncheck.report.page import encoded, fill
from attncheck.report.svg import ACCENT, BAD, BAND, INK, MUTED, Drawing, draw, plain
from attncheck.scaling.result import Widths, WidthsRow

# Maximum numbers of violated taps named in the text, and of labels of the axis.
_NAMED, _MOST_WIDTHS = 4, 8


def render_widths(result: Widths, name: str, out: Path) -> Path:
    """Write a self-contained page on models made by `name`."""
    bad = {row.moment for row in result.violated}
    tables = sorted(result.tables, key=lambda table: table[0] not in bad)  # tables with violations come first
    drawn = [(moment, rows, plot(result, moment)) for moment, rows in tables]
    return write_file(out, encoded(fill("widths.html.j2", "Widths", found=result, name=name, drawn=drawn)))


def plot(result: Widths, moment: str) -> Drawing | None:
    """Plot the sizes of taps, divided by their predictions, against the width; violated taps are red.

    Sizes are scaled to 1 at the narrowest width. `moment` is the time of the measurement, as in `WidthsRow.moment`.
    """
    rows = [row for row in result.rows if row.moment == moment and row.exponent is not None and row.p_values]
    if not rows:
        return None
    widths = np.array(result.widths, dtype=float)
    violated = [row for row in rows if row.verdict is Verdict.VIOLATED]

    def paint(axes: Axes) -> None:
        _bands(axes, widths / widths[0], widths, rows, result.tolerance)
        for row in sorted(rows, key=lambda row: row.verdict is Verdict.VIOLATED):
            bad = row.verdict is Verdict.VIOLATED
            color = BAD if bad else ACCENT if row.verdict is Verdict.CONSISTENT else MUTED
            relative = np.array(row.sizes) * widths ** -(row.high_predicted or 0.0)
            sizes = relative / relative[0]
            axes.plot(widths, sizes, color=color, linewidth=1.6 if bad else 0.9, zorder=3 if bad else 2)
            if bad:
                end = (widths[-1], sizes[-1])
                axes.annotate(row.name, end, (4, 0), textcoords="offset points", va="center", fontsize=10.5, color=BAD)
        axes.set(yscale="log", ylabel="size over n^predicted")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(plain())
        axes.yaxis.set_minor_formatter(NullFormatter())
        step = -(-len(widths) // _MOST_WIDTHS)
        axes.set(xscale="log", xlabel="width n", xlim=(0.75 * min(widths), max(widths) / 0.75))
        axes.xaxis.set_major_locator(FixedLocator(sorted(widths, reverse=True)[::step][::-1]))
        axes.xaxis.set_major_formatter(plain())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(True, axis="y")

    growth = [f"{row.name} grows as n^{row.exponent:+.2f}, predicted {row.predicted}" for row in violated[:_NAMED]]
    alt = (
        f"Sizes of {counted(len(rows), 'tap')} {moment} against the width, on logarithmic axes, divided by their "
        f"predictions. {len(violated)} of them are violated{': ' * bool(growth)}{'; '.join(growth)}."
    )
    margins = 66, 150 if violated else 12, 48, 10
    return draw(paint, alt, _CAPTION.format(moment=moment), width=640, height=380, margins=margins)


_CAPTION = (
    "Sizes {moment} divided by their predictions, 1 at the narrowest width: violated (red), consistent (blue), "
    "undecided (grey). The band is the prediction with its tolerance, the line the largest predicted exponent"
)


def _bands(axes: Axes, ratios: FloatArray, widths: FloatArray, rows: Sequence[WidthsRow], tolerance: float) -> None:
    """Draw the band of sizes that predictions and tolerance allow.

    Sizes are relative to the largest predicted exponent. `ratios` are the widths divided by the narrowest one.
    """
    known = [(row.low_predicted, row.high_predicted) for row in rows]
    lowest = min((low - high for low, high in known if low is not None and high is not None), default=0.0)
    axes.fill_between(widths, ratios ** (lowest - tolerance), ratios**tolerance, color=BAND, linewidth=0, zorder=0)
    axes.plot(widths, np.ones_like(ratios), color=INK, linewidth=0.8, linestyle="--", zorder=1)
