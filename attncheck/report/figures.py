"""Plots of a whole run, each with alternative text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from attncheck._lib.text import chance, counted
from attncheck.evidence.bands import QUANTILES
from attncheck.evidence.family import Outcome
from attncheck.evidence.plot_data import cdf_of_uniform
from attncheck.evidence.verdicts import Verdict
from attncheck.records.schema import Result
from attncheck.report import svg
from attncheck.report.results import band_kept
from attncheck.report.svg import ACCENT, BAD, BAND, GRID, INK, MUTED, Drawing, draw, plain, width_axis

# Largest effect shown, in units of the alternative.
_FARTHEST = 1e4


def limit_distances(results: Sequence[Result]) -> Drawing | None:
    """Plot observed distances from the limit, and those allowed at each width."""
    shown = [r for r in results if isinstance(r.case.get("width"), int) and r.effect and r.null_effect]
    if not shown:
        return None
    widths = np.array([float(result.case["width"]) for result in shown])
    observed = np.array([float(result.effect or 0.0) for result in shown])
    allowed = np.array([float(result.null_effect or 0.0) for result in shown])
    bad = np.array([result.verdict == Verdict.VIOLATED for result in shown])

    def paint(axes: Axes) -> None:
        axes.plot(widths, allowed, linestyle="", marker="_", markersize=14, color=INK, label="computed for the width")
        axes.plot(widths[~bad], observed[~bad], linestyle="", marker="o", markersize=5, color=ACCENT, label="observed")
        if bad.any():
            axes.plot(widths[bad], observed[bad], linestyle="", marker="X", color=BAD, label="violated")
        width_axis(axes, widths)
        axes.set_ylim(0, 1.15 * max(observed.max(), allowed.max()))
        axes.set_ylabel("distance from the limit")
        axes.grid(True, axis="y")
        axes.legend(loc="best", fontsize=10.5, framealpha=0.9, facecolor=svg.PAPER, edgecolor=GRID)

    farthest = int(np.argmax(observed / allowed))
    alt = (
        f"Distance from the limit against the width for {counted(len(shown), 'result')}: observed, and computed for "
        f"the width with its error. {int(bad.sum())} of them are violated. The largest relative to its bound is "
        f"{observed[farthest]:.3g} of {allowed[farthest]:.3g}, at width {widths[farthest]:g}; the rest of the "
        f"distance is sampling error."
    )
    return draw(paint, alt, "Distance from the limit against the width: observed (dots) and computed (bars)")


def uniformity(p_values: Sequence[float], test: Outcome) -> Drawing:
    """Plot the distribution function of first-look p-values against the uniform one."""
    values = np.sort(np.array(p_values))
    plot = cdf_of_uniform(values, 0.0)
    low, high = (edge / plot.count for edge in plot.band)

    def paint(axes: Axes) -> None:
        axes.fill_between([0, *QUANTILES, 1], [0, *low, 1], [0, *high, 1], color=BAND, linewidth=0)
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8)
        steps = np.arange(1, len(values) + 1) / len(values)
        axes.step([0, *values, 1], [0, *steps, 1], where="post", color=ACCENT, linewidth=1.6)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="first-look p-value", ylabel="share of items below")

    alt = (
        f"Distribution function of the first-look p-values of {counted(len(values), 'item')} against the diagonal that "
        f"a correct simulator follows. It {band_kept(plot)}. The largest distance is {test.effect:.3g}, "
        f"p = {chance(test.p_value)}."
    )
    return draw(paint, alt, "First-look p-values, one per item, against uniform", height=320)


def visited(shapes: Counter[tuple[int, ...]]) -> Drawing | None:
    """Plot visited widths and sequence lengths, with larger marks for more heads."""
    if not shapes:
        return None
    widths, positions, heads = (np.array(column, dtype=float) for column in zip(*sorted(shapes), strict=True))

    def paint(axes: Axes) -> None:
        axes.scatter(widths, positions, s=18 * np.sqrt(heads) + 4, color=ACCENT, alpha=0.55, linewidths=0)
        axes.plot([1, max(2.0, positions.max())], [1, max(2.0, positions.max())], color=MUTED, linewidth=0.8)
        width_axis(axes, widths)
        axes.set(ylim=(0, positions.max() + 1), ylabel="positions s")
        axes.grid(True)

    alt = (
        f"Widths and numbers of positions of {counted(len(shapes), 'shape')}: widths {widths.min():g} to "
        f"{widths.max():g}, positions {positions.min():g} to {positions.max():g}, heads {heads.min():g} to "
        f"{heads.max():g}. On {int((positions > widths).sum())} of them the positions exceed the width."
    )
    return draw(paint, alt, "Visited shapes: width, positions, and heads (larger marks); left of the line s > n")


def moves(points: Sequence[tuple[float, float]]) -> Drawing | None:
    """Plot effects against the baseline's, in units of the alternative."""
    if not points:
        return None
    before, after = (np.clip(np.array(column), -_FARTHEST, _FARTHEST) for column in zip(*points, strict=True))

    def paint(axes: Axes) -> None:
        values = [*before, *after]
        ends = _in_units(axes, "x", values)
        axes.plot(ends, ends, color=MUTED, linewidth=0.8)
        axes.plot(before, after, linestyle="", marker="o", markersize=3.5, color=ACCENT, alpha=0.6)
        axes.set(xlim=ends, ylim=_in_units(axes, "y", values))
        axes.set(xlabel="effect in the baseline", ylabel="effect in this run")

    farthest = int(np.argmax(np.abs(after - before)))
    alt = (
        f"Effects of {counted(len(points), 'result')} in this run against those in the baseline, in units of "
        f"the alternative; equal effects lie on the diagonal. The farthest from it went from {before[farthest]:.3g} to "
        f"{after[farthest]:.3g}."
    )
    return draw(paint, alt, "Effects in both runs, in units of the alternative", height=320)


def _in_units(axes: Axes, name: str, values: Sequence[float]) -> tuple[float, float]:
    """Scale an axis linearly up to the alternative and logarithmically beyond it; return its limits."""
    low, high = min(-1.4, 1.25 * min(values)), max(1.4, 1.25 * max(values))
    ticks = [0.0, *(sign * 10.0**power for power in range(5) for sign in (-1, 1))]
    axis = axes.xaxis if name == "x" else axes.yaxis
    (axes.set_xscale if name == "x" else axes.set_yscale)("symlog", linthresh=2.0)
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(plain())
    return low, high
