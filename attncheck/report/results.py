"""Plots of single results: observed against expected, with alternative text."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray
from scipy import special

from attncheck._lib.text import counted
from attncheck.evidence.plot_data import LABELLED
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.names import layer_name
from attncheck.records.schema import Result
from attncheck.records.text import quantity
from attncheck.report.plots import (
    Counts,
    Covariances,
    Density,
    MatrixPlot,
    PairedCounts,
    PositionsPlot,
    ProfilePlot,
    leaves,
    read_plot,
)
from attncheck.report.svg import ACCENT, BAD, BAND, INK, MUTED, Drawing, draw

# Smallest half-width in standard deviations, and margin beyond the outermost quantile.
_WIDEST, _STEP = 4.0, 0.3
# Two laws are the same if fewer values differ than this share.
_SAME = 1e-3
# Entries of two matrices differ if their distance exceeds this share of the largest.
_APART = 1e-3


def of_result(result: Result) -> Drawing | None:
    """Return the plot of a result, or None."""
    match read_plot(result.plot):
        case Counts() | PairedCounts() as plot:
            return _counts(plot, result)
        case Density() as plot:
            return _density(plot, result)
        case MatrixPlot() as plot:
            return _matrix(plot, result)
        case Covariances() as plot:
            return _covariances(plot, result)
    return None


def _counts(plot: Counts | PairedCounts, result: Result) -> Drawing:
    places = special.ndtri(plot.quantiles)
    low, high = map(plot.in_errors, plot.band)
    found = plot.in_errors(plot.below)
    outside = leaves(plot) is not None
    observed, declared = plot.shares
    axis, label = _quantile_axis(plot, result)
    # Values are placed by normal quantiles, so that any correct law appears as a bell curve.
    edges = np.array([min(-_WIDEST, places[0] - _STEP), *places, max(_WIDEST, places[-1] + _STEP)])

    def paint(axes: Axes) -> None:
        _densities(axes, edges, observed, declared, outside)

    def difference(axes: Axes) -> None:
        axes.fill_between(places, low, high, color=BAND, linewidth=0)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        color, line = (BAD, "--") if outside else (ACCENT, "-")
        axes.plot(places, found, color=color, linewidth=1.4, linestyle=line, marker="" if len(found) > 9 else ".")
        reach = 1.15 * max(float(np.abs(curve).max()) for curve in (low, high, found))
        axes.set(xlim=(edges[0], edges[-1]), ylim=(-reach, reach), xlabel=axis, ylabel="difference")
        shown = [at for at in special.ndtri(LABELLED) if edges[0] <= at <= edges[-1]]
        axes.xaxis.set_major_locator(FixedLocator(shown))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: label(at)))

    where, kept = _where(result), band_kept(plot)
    alt = (
        f"Observed and expected density of {where}, from {counted(plot.count, 'value')}, by {axis}, "
        f"and below them the difference of the distribution functions in standard errors. It {kept}."
    )
    caption = f"{where}: observed (bars) and expected (line); below, their difference in standard errors, which {kept}"
    return draw(paint, alt, caption, below=difference, height=320)


def _quantile_axis(plot: Counts | PairedCounts, result: Result) -> tuple[str, Callable[[float], str]]:
    """Return the name of the horizontal axis, and a function that labels the normal quantiles at `LABELLED`."""
    if isinstance(plot, Counts):
        # The axis is in quantiles of N(0, 1). Whitened values are on this scale: labels are the values themselves.
        return f"{quantity(result)}, on the scale of N(0, 1)", lambda at: f"{at:.2g}".replace("-", "−")
    places = special.ndtri(LABELLED)
    return quantity(result), lambda at: f"{np.interp(at, places, plot.labels):.2g}".replace("-", "−")


def band_kept(plot: Counts | PairedCounts) -> str:
    """Return a phrase on whether and where a plot leaves its band."""
    worst = leaves(plot)
    if worst is None:
        return "stays inside its 99% band"
    place, found = float(plot.quantiles[worst]), plot.below[worst]
    low, high = (int(edge[worst]) for edge in plot.band)
    side, at = "below", f"{place:.2g}"
    if place > 0.5:
        low, found, high = plot.count - high, plot.count - found, plot.count - low
        side, at = "above", f"1 − {1.0 - place:.2g}"
    return (
        f"leaves its 99% band, farthest at quantile {at}: too {'many' if found > high else 'few'} values lie {side}, "
        f"{found:,} of {plot.count:,} where the band has {low:,} to {high:,}"
    )


def _density(plot: Density, result: Result) -> Drawing:
    observed, law = np.array(plot.shares), np.array(plot.law)
    edges = np.linspace(-plot.widest, plot.widest, len(law) + 1)
    normal = np.diff([0.0, *special.ndtr(edges[1:-1]), 1.0])
    errors = np.sqrt(law * (1.0 - law) / max(1, plot.count))
    half = NormalDist().inv_cdf(1 - 0.005 / len(law))
    off, apart = (0.5 * float(np.abs(shares - law).sum()) for shares in (observed, normal))
    name = "N(0, 1)" if apart < _SAME else "limit"
    dashed: dict[str, Any] = {"color": MUTED, "linewidth": 1.2, "linestyle": "--"}

    def paint(axes: Axes) -> None:
        _densities(axes, edges, observed, law, result.verdict == Verdict.VIOLATED, name)
        if name == "limit":
            axes.stairs(normal / np.diff(edges), edges, baseline=None, label="Gaussian", **dashed)
            axes.legend(loc="upper right", fontsize=10.5, frameon=False, handlelength=1.2)

    def difference(axes: Axes) -> None:
        axes.stairs(100 * half * errors, edges, baseline=-100 * half * errors, fill=True, color=BAND, linewidth=0)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        if name == "limit":
            axes.stairs(100 * (normal - law), edges, baseline=None, **dashed)
        axes.stairs(100 * (observed - law), edges, color=ACCENT, linewidth=1.4, baseline=None)
        axes.set(xlim=(edges[0], edges[-1]), xlabel=f"standard deviations of {name}", ylabel="difference, %")

    also = f" and the Gaussian of its variance (dashed), which differs by {apart:.1%}" if name == "limit" else ""
    alt = (
        f"Histogram of {counted(plot.count, 'value')} of {_where(result)} with {name}{also}; below, their difference "
        f"by bin. Histogram and {name} differ by {off:.1%} of the values; the standard deviation is {plot.std:.3g}."
    )
    caption = (
        f"{_where(result)}: values (bars) and {name} (line){also}; below, the difference from {name}, with its 99% band"
    )
    return draw(paint, alt, caption, below=difference, height=320)


def _matrix(plot: MatrixPlot, result: Result) -> Drawing:
    rows, columns = np.tril_indices(plot.size)
    observed, declared, error = (np.array(x) for x in (plot.observed, plot.declared, plot.error))
    half = NormalDist().inv_cdf(1 - 0.005 / len(observed))
    off = np.abs(observed - declared) > half * error

    def paint(axes: Axes) -> None:
        paint_discs(axes, (rows, columns), observed, declared, off)
        axes.set(xlabel=plot.of)
        axes.set(xticklabels=range(1, plot.size + 1), yticklabels=range(1, plot.size + 1))

    worst = int(np.argmax(np.abs(observed - declared) / np.maximum(error, 1e-300)))
    where = f"{plot.of} {columns[worst] + 1} and {rows[worst] + 1}"
    alt = (
        f"{_where(result)}: {plot.what}, observed and expected, as areas of discs. "
        f"{int(off.sum())} of {len(off)} lie outside a joint 99% interval; farthest in standard errors is that of "
        f"{where}: {observed[worst]:.3g}, declared {declared[worst]:.3g}."
    )
    caption = (
        f"{_where(result)}: {plot.what}, observed (rings) and expected (discs) as areas; "
        f"crossed ones lie outside a joint 99% interval"
    )
    return draw(paint, alt, caption, width=300, height=290, margins=(36, 10, 44, 8))


def of_cause(raw: dict[str, Any] | None) -> Drawing | None:
    """Return the plot of what a subject does instead of what is declared, or None.

    Examples
    --------
    >>> plot = {"kind": "positions", "of": "key", "what": "attention weights", "size": 2}
    >>> of_cause({**plot, "observed": [1.0, 0.5, 0.5, 0.5], "declared": [1.0, 0.0, 0.5, 0.5]}).alt[-59:]
    'first at query 0 and key 1: 0.5 is observed, 0 is declared.'
    """
    match read_plot(raw):
        case PositionsPlot() as plot:
            return _positions(plot)
        case ProfilePlot() as plot:
            return _profile(plot)
    return None


def _profile(plot: ProfilePlot) -> Drawing:
    observed, half = np.array(plot.observed), np.array(plot.half)
    off = np.abs(observed - plot.declared) > half

    def paint(axes: Axes) -> None:
        axes.axhline(plot.declared, color=MUTED, linewidth=0.8, linestyle="--")
        at = np.arange(len(observed))
        for chosen, color, marker in ((~off, ACCENT, "o"), (off, BAD, "X")):
            errors = half[chosen]
            axes.errorbar(at[chosen], observed[chosen], errors, linestyle="", marker=marker, color=color, markersize=5)
        axes.set(xticks=at, xticklabels=[f"{place:g}" for place in plot.places], xlabel=plot.of, ylabel="observed")
        axes.grid(True, axis="y")

    worst = int(np.argmax(np.abs(observed - plot.declared)))
    alt = (
        f"{plot.what} by {plot.of}, with 99.9% intervals; {plot.declared:g} is declared. {int(off.sum())} of "
        f"{len(off)} intervals exclude it. The farthest is {observed[worst]:.3g} at {plot.of} {plot.places[worst]:g}."
    )
    caption = f"{plot.what} by {plot.of}, with 99.9% intervals; the line is the declared value"
    return draw(paint, alt, caption, height=300)


def _positions(plot: PositionsPlot) -> Drawing:
    observed, declared = np.array(plot.observed), np.array(plot.declared)
    rows, columns = np.divmod(np.arange(observed.size), plot.size)
    off = np.abs(observed - declared) > _APART * max(float(np.abs(declared).max()), float(np.abs(observed).max()))

    def paint(axes: Axes) -> None:
        paint_discs(axes, (rows, columns), observed, declared, off)
        axes.set(xlabel=f"position of the {plot.of}", ylabel="position of the query")

    worst = int(np.argmax(off))
    alt = (
        f"{plot.what}, observed and declared, as areas of discs by positions of query and {plot.of}. {int(off.sum())} "
        f"of {len(off)} differ, first at query {rows[worst]} and {plot.of} {columns[worst]}: "
        f"{observed[worst]:.3g} is observed, {declared[worst]:.3g} is declared."
    )
    caption = f"{plot.what}: observed (rings) and declared (discs) as areas; crossed ones differ"
    return draw(paint, alt, caption, width=330, height=330, margins=(52, 10, 48, 8))


def paint_discs(
    axes: Axes,
    places: tuple[NDArray[np.intp], NDArray[np.intp]],
    observed: NDArray[np.float64],
    declared: NDArray[np.float64],
    off: NDArray[np.bool_],
) -> None:
    """Draw entries of a matrix at `places`, rows and columns, as areas: declared discs, observed rings."""
    rows, columns = places
    count = int(max(rows.max(), columns.max())) + 1
    largest = max(float(np.abs([observed, declared]).max()), 1e-300)
    size = 0.8 * 28_000 / count**2 / largest  # the largest disc fills its cell
    axes.scatter(columns, rows, s=size * np.abs(declared), color=BAND, linewidths=0)
    for chosen, color in ((~off, ACCENT), (off, BAD)):
        at, values = (columns[chosen], rows[chosen]), observed[chosen]
        axes.scatter(*at, s=size * np.abs(values), facecolors="none", edgecolors=color, linewidths=1.5)
    axes.plot(columns[off], rows[off], "x", color=BAD, markersize=5)
    axes.set(xlim=(-0.6, count - 0.4), ylim=(count - 0.4, -0.6), aspect="equal")
    axes.set(xticks=range(count), yticks=range(count))


def _densities(
    axes: Axes,
    edges: NDArray[np.float64],
    observed: NDArray[np.float64],
    declared: NDArray[np.float64],
    wrong: bool,
    name: str = "declared",
) -> None:
    """Draw observed shares as bars and expected ones as a line."""
    steps, color = np.diff(edges), BAD if wrong else ACCENT
    axes.stairs(observed / steps, edges, fill=True, color=BAND, edgecolor=color, linewidth=0.8, label="observed")
    axes.stairs(declared / steps, edges, color=INK, linewidth=1.4, baseline=None, label=name)
    axes.set(ylabel="density", yticks=[])
    axes.legend(loc="upper right", fontsize=10.5, frameon=False, handlelength=1.2)


def _covariances(plot: Covariances, result: Result) -> Drawing:
    predicted, observed, error = (np.array(x) for x in (plot.predicted, plot.observed, plot.error))
    # One joint interval for all pairs.
    half = NormalDist().inv_cdf(1 - 0.005 / len(predicted)) * error
    off = np.abs(observed - predicted) > half

    def paint(axes: Axes) -> None:
        low, high = min(predicted.min(), observed.min()), max(predicted.max(), observed.max())
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1.0)
        for chosen, color, marker in ((~off, ACCENT, "o"), (off, BAD, "X")):
            if chosen.any():
                axes.errorbar(
                    predicted[chosen],
                    observed[chosen],
                    half[chosen],
                    fmt=marker,
                    color=color,
                    markersize=5,
                    elinewidth=1,
                )
        axes.set(xlabel="predicted covariance", ylabel="observed covariance")

    inputs = float(predicted @ predicted)
    slope = float(predicted @ observed) / inputs if inputs > 0 else 0.0
    alt = (
        f"Observed against predicted covariances of {counted(len(predicted), 'pair')} of scores on "
        f"{layer_name(result.case)}, with joint 99% intervals. {int(off.sum())} of them lie off the diagonal; "
        f"observed covariances are {slope:.3g} times the predicted ones."
    )
    caption = f"Score covariances on {layer_name(result.case)}: observed against predicted, joint 99% intervals"
    return draw(paint, alt, caption)


def _where(result: Result) -> str:
    return f"{result.check} on {layer_name(result.case)}"
