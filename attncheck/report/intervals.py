"""Plots of effects with intervals, one row per case, check or claim."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from attncheck._lib.text import counted, printable
from attncheck.evidence.text import expected
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.names import layer_name
from attncheck.records.schema import Result
from attncheck.records.tallies import Tally
from attncheck.records.text import in_mdes, interval, reads
from attncheck.report.svg import ACCENT, BAD, BAND, MUTED, Drawing, draw, plain

# Maximum number of cases in a plot, and of intervals per row.
_SHOWN, _INTERVALS = 8, 12
# Largest deviation shown, in minimum detectable effects.
_FARTHEST = 1e4
# Wider logarithmic scales are labelled at 1, 2, 5, 10, …; maximum number of labels.
_WIDE, _TICKS = 10.0, 6
# Characters per line of a row's label, and lines.
_LINE, _LINES = 34, 3
# CSS pixels: height of a row, height of the axis, width, and left margin, which has the labels.
_ROW, _AXIS, _WIDTH, _LABELS = 46, 60, 560, 250


@dataclasses.dataclass(frozen=True)
class IntervalRow:
    """A labelled row: effects as (low, effect, high, violated), and the band of undetectable effects."""

    label: str
    intervals: tuple[tuple[float, float, float, bool], ...] = ()
    band: tuple[float, float] | None = None


def by_case(tally: Tally) -> Drawing | None:
    """Plot a check's effects on its most suspicious cases, violated first, with bands up to the MDE."""
    shown = [each for each in tally.worst if _finite(each)][:_SHOWN]
    if not shown:
        return None
    ratio = all(each.null_effect == 1.0 and (each.low or 0.0) > 0.0 for each in shown)
    rows = [IntervalRow(layer_name(each.case), (_interval(each),), _undetectable(each, ratio)) for each in shown]
    left = tally.examined - len(shown)
    more = f"; {counted(left, 'other')} not shown" if left else ""
    what = f"{reads(shown[0])}, {expected(shown[0])}, by case"
    caption = f"{what} with 99% intervals{more}. Shaded: too small to be detected"
    told = "; ".join(f"{row.label}: {interval(each)}" for row, each in zip(rows, shown, strict=True))
    return _drawing(rows, caption, told, at=shown[0].null_effect, scale="log" if ratio else "linear")


def by_check(groups: Sequence[tuple[str, Sequence[Result]]]) -> Drawing:
    """Plot effects of checks in minimum detectable effects, linearly up to 1 and logarithmically beyond."""
    found = [[mark for each in results[:_INTERVALS] if (mark := _in_mdes(each))] for _, results in groups]
    rows = [IntervalRow(name, tuple(marks), (-1.0, 1.0)) for (name, _), marks in zip(groups, found, strict=True)]
    told = "; ".join(
        f"{row.label}: {min(mark[1] for mark in row.intervals):.2g} to {max(mark[1] for mark in row.intervals):.2g}"
        for row in rows
        if row.intervals
    )
    caption = "Effects in minimum detectable effects, the expected value at 0. Shaded: too small to be detected"
    return _drawing(rows, caption, told, at=0.0, scale="symlog")


def would_have_seen(rows: Sequence[tuple[str, Sequence[float], float | None]]) -> Drawing | None:
    """Plot minimum detectable effects; rows are (label, those on single cases, that of the pool)."""
    if not any(value for _, single, common in rows for value in (*single, common) if value):
        return None
    shown, told = [], []
    for name, single, common in rows:
        marks = () if common is None else ((common, common, common, False),)
        shown.append(IntervalRow(name, marks, (min(single), max(single))))
        span = " to ".join(dict.fromkeys(map(percent, (min(single), max(single)))))
        told.append(f"{name}: {span}{'' if common is None else f', pooled {percent(common)}'}")
    caption = "Minimum detectable effects, on single cases (bars) and pooled (dots)"
    return _drawing(shown, caption, "; ".join(told), scale="percent")


def percent(share: float) -> str:
    """Return a share in percent.

    Examples
    --------
    >>> percent(0.0312), percent(1.5)
    ('3.1%', '150%')
    """
    return f"{float(f'{100.0 * share:.2g}'):g}%"


def _drawing(rows: Sequence[IntervalRow], caption: str, told: str, *, at: float | None = None, scale: str) -> Drawing:
    """Draw rows from top to bottom on a scale, with a line at the expected value."""

    def paint(axes: Axes) -> None:
        for place, row in enumerate(rows):
            if row.band:
                low, high = row.band
                edge = 3.0 * (low == high)  # a bar without width is a line
                axes.barh(place, high - low, left=low, height=0.72, color=BAND, edgecolor=BAND, linewidth=edge)
            for low, effect, high, wrong in row.intervals:
                color, marker = (BAD, "D") if wrong else (ACCENT, "o")
                errors = [[max(effect - low, 0.0)], [max(high - effect, 0.0)]]
                axes.errorbar(effect, place, xerr=errors, fmt=marker, color=color, markersize=5, elinewidth=1.4)
        if at is not None:
            axes.axvline(at, color=MUTED, linewidth=0.8)
        axes.set(yticks=range(len(rows)), ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticklabels([_label(row.label) for row in rows])
        axes.tick_params(axis="y", length=0)
        _scaled(axes, scale)

    alt = f"{caption}: {told}." if told else f"{caption}."
    margins = _LABELS, 18, 34, 8
    return draw(paint, alt, caption, width=_WIDTH, height=_AXIS + _ROW * len(rows), margins=margins)


def _scaled(axes: Axes, scale: str) -> None:
    """Set and label the horizontal scale."""
    if scale == "symlog":
        axes.set_xscale("symlog", linthresh=1.0)
        reach = min(max(1.4, *map(abs, axes.get_xlim())), _FARTHEST)
        axes.set_xlim(-reach, reach)
        powers = [10.0**power for power in range(5) if 10.0**power <= reach]
        axes.xaxis.set_major_locator(FixedLocator([*(-power for power in powers[::-1]), 0.0, *powers]))
    elif scale in ("log", "percent"):
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        if high / low > _WIDE:
            ticks = [m * 10.0**power for power in range(-12, 13) for m in (1, 2, 5)]
        else:
            ticks = [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)]
        known = [tick for tick in ticks if low < tick < high]
        axes.xaxis.set_major_locator(FixedLocator(known[:: max(1, -(-len(known) // _TICKS))]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value)) if scale == "percent" else plain())


def _label(text: str) -> str:
    """Return a label on a few lines."""
    return "\n".join(textwrap.wrap(printable(text, _LINE * _LINES), _LINE)[:_LINES])


def _finite(result: Result) -> bool:
    values = (result.effect, result.low, result.high)
    return all(value is not None and math.isfinite(value) and abs(value) < 1e12 for value in values)


def _undetectable(result: Result, ratio: bool) -> tuple[float, float] | None:
    """Return the band of effects that are too small to be detected."""
    mde, null = result.mde, result.null_effect
    if mde is None or null is None or not math.isfinite(mde) or (ratio and mde <= 0.0):
        return None
    other = 1.0 / mde if ratio else 2.0 * null - mde
    if result.low is not None and result.low >= 0.0 and null >= 0.0 and not ratio:
        other = max(other, 0.0)  # distances and frequencies are one-sided
    return min(mde, other), max(mde, other)


def _interval(result: Result) -> tuple[float, float, float, bool]:
    return result.low or 0.0, result.effect or 0.0, result.high or 0.0, result.verdict == Verdict.VIOLATED


def _in_mdes(result: Result) -> tuple[float, float, float, bool] | None:
    """Return an effect with its interval in minimum detectable effects."""
    found = [in_mdes(result, value) for value in (result.effect, result.low, result.high)]
    known = [min(max(value, -_FARTHEST), _FARTHEST) for value in found if value is not None]
    if len(known) < 3:
        return None
    effect, *ends = known
    return min(ends), effect, max(ends), result.verdict == Verdict.VIOLATED
