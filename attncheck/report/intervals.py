"""Plot of a check's effects with intervals, one row per case."""

from __future__ import annotations

import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter

from attncheck._lib.text import counted, printable
from attncheck.evidence.verdicts import Verdict, expected
from attncheck.layers.names import layer_name
from attncheck.records.schema import Result
from attncheck.records.tallies import Tally
from attncheck.records.text import interval, label_of
from attncheck.report.svg import ACCENT, BAD, BAND, MUTED, Drawing, draw, plain

# Maximum number of cases in a plot.
_MOST_ROWS = 8
# A logarithmic scale is labelled at 1, 2, 5, 10, … if the ratio of its ends exceeds _WIDE. It has at most _TICKS
# labels.
_WIDE, _TICKS = 10.0, 6
# The label of a row has at most _LINES lines of at most _LINE characters.
_LINE, _LINES = 34, 3
# CSS pixels: height of a row, height of the axis, width, and left margin, which has the labels.
_ROW, _AXIS, _WIDTH, _LABELS = 46, 60, 560, 250


def by_case(tally: Tally) -> Drawing | None:
    """Plot a check's effects on its most suspicious cases, violated cases first.

    Bands show effects that are too small to be detected, and a line shows the expected effect. The scale is logarithmic
    if effects are ratios.
    """
    results = [result for result in tally.worst if _finite(result)][:_MOST_ROWS]
    if not results:
        return None
    ratio = all(result.null_effect == 1.0 and (result.low or 0.0) > 0.0 for result in results)

    def paint(axes: Axes) -> None:
        for index, result in enumerate(results):
            if band := _undetectable(result, ratio):
                low, high = band
                edge = 3.0 * (low == high)  # a band without width is drawn as a line
                axes.barh(index, high - low, left=low, height=0.72, color=BAND, edgecolor=BAND, linewidth=edge)
            low, effect, high = (number or 0.0 for number in (result.low, result.effect, result.high))
            color, marker = (BAD, "D") if result.verdict == Verdict.VIOLATED else (ACCENT, "o")
            errors = [[max(effect - low, 0.0)], [max(high - effect, 0.0)]]
            axes.errorbar(effect, index, xerr=errors, fmt=marker, color=color, markersize=5, elinewidth=1.4)
        if results[0].null_effect is not None:
            axes.axvline(results[0].null_effect, color=MUTED, linewidth=0.8)
        axes.set(yticks=range(len(results)), ylim=(len(results) - 0.5, -0.5))
        names = (textwrap.wrap(printable(layer_name(result.case), _LINE * _LINES), _LINE) for result in results)
        axes.set_yticklabels(["\n".join(lines[:_LINES]) for lines in names])
        axes.tick_params(axis="y", length=0)
        _scaled(axes, ratio)

    remaining = tally.examined - len(results)
    more = f"; {counted(remaining, 'other')} not shown" if remaining else ""
    title = f"{label_of(results[0])}, {expected(results[0].null_effect, results[0].at_most)}, by case"
    caption = f"{title} with 99% intervals{more}. Shaded: too small to be detected"
    alt = f"{caption}: {'; '.join(f'{layer_name(result.case)}: {interval(result)}' for result in results)}."
    margins = _LABELS, 18, 34, 8
    return draw(paint, alt, caption, width=_WIDTH, height=_AXIS + _ROW * len(results), margins=margins)


def _scaled(axes: Axes, ratio: bool) -> None:
    """Set and label the horizontal scale, logarithmic for ratios."""
    if ratio:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        if high / low > _WIDE:
            ticks = [m * 10.0**power for power in range(-12, 13) for m in (1, 2, 5)]
        else:
            ticks = [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)]
        known = [tick for tick in ticks if low < tick < high]
        axes.xaxis.set_major_locator(FixedLocator(known[:: max(1, -(-len(known) // _TICKS))]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(plain())


def _finite(result: Result) -> bool:
    values = (result.effect, result.low, result.high)
    return all(value is not None and math.isfinite(value) and abs(value) < 1e12 for value in values)


def _undetectable(result: Result, ratio: bool) -> tuple[float, float] | None:
    """Return the band of effects that are too small to be detected."""
    mde, null = result.mde, result.null_effect
    if mde is None or null is None or not math.isfinite(mde) or (ratio and mde <= 0.0):
        return None
    opposite = 1.0 / mde if ratio else 2.0 * null - mde
    if result.low is not None and result.low >= 0.0 and null >= 0.0 and not ratio:
        opposite = max(opposite, 0.0)  # distances and frequencies cannot be negative
    return min(mde, opposite), max(mde, opposite)
