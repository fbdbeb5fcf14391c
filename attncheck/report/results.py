"""Plots of results: observed against expected, with alternative text."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy import special

from attncheck._lib.text import counted
from attncheck.evidence.family import Outcome
from attncheck.evidence.plot_data import LABELLED, Counts, Estimates, Matrix, Plot, read_plot
from attncheck.layers.names import layer_name
from attncheck.records.schema import Result
from attncheck.records.text import quantity
from attncheck.report.svg import ACCENT, BAD, BAND, INK, MUTED, Drawing, draw

# A histogram extends to _WIDEST standard deviations on both sides or, if that is further out, to _STEP beyond the
# outermost quantile.
_WIDEST, _STEP = 4.0, 0.3
# Fewest p-values that are plotted.
_FEWEST = 10
_NORMAL_SCALE = ", on the scale of N(0, 1)"


def of_result(result: Result) -> Drawing | None:
    """Return the plot of a result's observed and expected law, or None if the result has no such data."""
    plot = read_plot(result.plot)
    if not isinstance(plot, Counts):
        return None
    # Without a reference sample, the axis shows quantiles of N(0, 1), the law of whitened values.
    axis = quantity(result) + ("" if plot.against else _NORMAL_SCALE)
    return _counts(plot, f"{result.check} on {layer_name(result.case)}", axis)


def of_p_values(uniformity: Outcome | None) -> Drawing | None:
    """Return the plot of the p-values of first looks, one per case, against the uniform law; None for a few cases."""
    if uniformity is None or uniformity.count < _FEWEST or not isinstance(uniformity.plot, Counts):
        return None
    return _counts(uniformity.plot, "p-values of first looks", f"p-value{_NORMAL_SCALE}")


def _counts(plot: Counts, where: str, axis: str) -> Drawing:
    points, labelled = special.ndtri(plot.quantiles), special.ndtri(LABELLED)
    low, high = map(plot.in_errors, plot.band)
    deviations = plot.in_errors(plot.below)
    outside = plot.farthest is not None
    observed, expected = plot.shares
    # Values are placed by normal quantiles, so that any correct law appears as a bell curve.
    edges = np.array([min(-_WIDEST, points[0] - _STEP), *points, max(_WIDEST, points[-1] + _STEP)])

    def paint(axes: Axes) -> None:
        steps, color = np.diff(edges), BAD if outside else ACCENT
        axes.stairs(observed / steps, edges, fill=True, color=BAND, edgecolor=color, linewidth=0.8, label="observed")
        axes.stairs(expected / steps, edges, color=INK, linewidth=1.4, baseline=None, label="declared")
        axes.set(ylabel="density", yticks=[])
        axes.legend(loc="upper right", fontsize=10.5, frameon=False, handlelength=1.2)

    def difference(axes: Axes) -> None:
        axes.fill_between(points, low, high, color=BAND, linewidth=0)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        color, line = (BAD, "--") if outside else (ACCENT, "-")
        marker = "" if len(points) > 9 else "."
        axes.plot(points, deviations, color=color, linewidth=1.4, linestyle=line, marker=marker)
        y_limit = 1.15 * max(float(np.abs(curve).max()) for curve in (low, high, deviations))
        axes.set(xlim=(edges[0], edges[-1]), ylim=(-y_limit, y_limit), xlabel=axis, ylabel="difference")
        labels = zip(labelled, plot.labels or labelled, strict=True)
        tick_labels = {at: f"{label:.2g}".replace("-", "−") for at, label in labels if edges[0] <= at <= edges[-1]}
        axes.set_xticks([*tick_labels], tick_labels.values())

    outcome = band_visible(plot)
    alt = (
        f"Observed and expected density of {where}, from {counted(plot.count, 'value')}, by {axis}, "
        f"and below them the difference of the distribution functions in standard errors. It {outcome}."
    )
    caption = (
        f"{where}: observed (bars) and expected (line); below, their difference in standard errors, which {outcome}"
    )
    return draw(paint, alt, caption, below=difference, height=320)


def band_visible(plot: Counts) -> str:
    """Return a phrase on whether and where a plot leaves its band."""
    worst = plot.farthest
    if worst is None:
        return "stays inside its 99% band"
    quantile, observed = float(plot.quantiles[worst]), plot.below[worst]
    low, high = (int(edge[worst]) for edge in plot.band)
    side, at = "below", f"{quantile:.2g}"
    if quantile > 0.5:
        low, observed, high = plot.count - high, plot.count - observed, plot.count - low
        side, at = "above", f"1 − {1.0 - quantile:.2g}"
    return (
        f"leaves its 99% band, farthest at quantile {at}: too {'many' if observed > high else 'few'} values lie "
        f"{side}, {observed:,} of {plot.count:,} where the band has {low:,} to {high:,}"
    )


def of_cause(plot: Plot | None) -> Drawing | None:
    """Return the plot of a diagnosed cause, observed against declared values, or None.

    Examples
    --------
    >>> from attncheck.evidence.plot_data import positions
    >>> of_cause(positions([[1.0, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]], "key", "attention weights")).alt[-59:]
    'first at query 0 and key 1: 0.5 is observed, 0 is declared.'
    """
    match plot:
        case Matrix():
            return _positions(plot)
        case Estimates():
            return _profile(plot)
    return None


def _profile(plot: Estimates) -> Drawing:
    declared, off = plot.expected[0], plot.outside

    def paint(axes: Axes) -> None:
        axes.axhline(declared, color=MUTED, linewidth=0.8, linestyle="--")
        at = np.arange(len(plot.indices))
        observed, half = np.array(plot.observed), np.array(plot.half_width)
        for chosen, color, marker in ((~off, ACCENT, "o"), (off, BAD, "X")):
            axes.errorbar(at[chosen], observed[chosen], half[chosen], fmt=marker, color=color, markersize=5)
        axes.set(xticks=at, xticklabels=[f"{index:g}" for index in plot.indices], xlabel=plot.axis, ylabel="observed")
        axes.grid(True, axis="y")

    worst = int(np.argmax(np.abs(np.array(plot.observed) - declared)))
    alt = (
        f"{plot.quantity} by {plot.axis}, with 99.9% intervals; {declared:g} is declared. {int(off.sum())} of "
        f"{len(off)} intervals exclude it. The farthest is {plot.observed[worst]:.3g} at {plot.axis} "
        f"{plot.indices[worst]:g}."
    )
    caption = f"{plot.quantity} by {plot.axis}, with 99.9% intervals; the line is the declared value"
    return draw(paint, alt, caption, height=300)


def _positions(plot: Matrix) -> Drawing:
    off = plot.outside

    def paint(axes: Axes) -> None:
        rows, columns = np.array(plot.rows), np.array(plot.columns)
        observed, expected = np.array(plot.observed), np.array(plot.expected)
        count = int(max(rows.max(), columns.max())) + 1
        largest = max(float(np.abs([observed, expected]).max()), 1e-300)
        size = 0.8 * 28_000 / count**2 / largest  # the largest disc fills its cell
        axes.scatter(columns, rows, s=size * np.abs(expected), color=BAND, linewidths=0)
        for chosen, color in ((~off, ACCENT), (off, BAD)):
            at, values = (columns[chosen], rows[chosen]), observed[chosen]
            axes.scatter(*at, s=size * np.abs(values), facecolors="none", edgecolors=color, linewidths=1.5)
        axes.plot(columns[off], rows[off], "x", color=BAD, markersize=5)
        axes.set(xlim=(-0.6, count - 0.4), ylim=(count - 0.4, -0.6), aspect="equal")
        axes.set(xticks=range(count), yticks=range(count))
        axes.set(xlabel=f"position of the {plot.axis}", ylabel="position of the query")

    worst = int(np.argmax(off))
    alt = (
        f"{plot.quantity}, observed and declared: a disc for each position of query and {plot.axis}. "
        f"{int(off.sum())} of {len(off)} differ, first at query {plot.rows[worst]} and {plot.axis} "
        f"{plot.columns[worst]}: {plot.observed[worst]:.3g} is observed, {plot.expected[worst]:.3g} is declared."
    )
    caption = f"{plot.quantity}: observed (rings) and declared (discs) as areas; crossed ones differ"
    return draw(paint, alt, caption, width=330, height=330, margins=(52, 10, 48, 8))
