"""What a person would want to see of each claim, drawn from records, each with its message in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from numpy.typing import NDArray
from scipy import special

from attncheck._lib.words import chance, counted, number
from attncheck.evidence.bands import QUANTILES
from attncheck.evidence.family import Outcome
from attncheck.evidence.pictures import cdf_of_uniform
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.names import layer_name
from attncheck.records.schema import Result
from attncheck.report import svg
from attncheck.report.pictures import Counts, Covariances, PairedCounts, RatePicture, Residuals, leaves, read_picture
from attncheck.report.svg import ACCENT, BAD, BAND, GRID, INK, MUTED, Drawing, draw

_QUANTILE = NormalDist().inv_cdf(0.995)
# The largest deviation that a forest plot shows, in units of what must be caught.
_FARTHEST = 1e4
# Labels of widths that fit.
_MOST_WIDTHS = 8
# Standard deviations that a density shows at least, and the room beyond its outermost quantile.
_WIDEST, _STEP = 4.0, 0.3
# Labels of quantiles.
_QUANTILES = (0.0001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999)


def of_result(result: Result) -> Drawing | None:
    """Return the picture that a result carries, or None."""
    match read_picture(result.picture):
        case Counts() | PairedCounts() as picture:
            return _counts(picture, result)
        case Residuals() as picture:
            return _residuals(picture, result)
        case Covariances() as picture:
            return _covariances(picture, result)
        case RatePicture() as picture:
            return _rate(picture, result)
    return None


def _counts(picture: Counts | PairedCounts, result: Result) -> Drawing:
    places = special.ndtri(picture.quantiles)
    low, high = map(picture.in_errors, picture.band)
    found = picture.in_errors(picture.below)
    outside = leaves(picture) is not None
    observed, declared = picture.shares
    # Quantiles lie as a normal law has them: a right law shows as a bell, whatever it is.
    edges = np.array([min(-_WIDEST, places[0] - _STEP), *places, max(_WIDEST, places[-1] + _STEP)])

    def paint(axes: Axes) -> None:
        _densities(axes, edges, observed, declared, outside)

    def difference(axes: Axes) -> None:
        axes.fill_between(places, low, high, color=BAND, linewidth=0)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        color, line = (BAD, "--") if outside else (ACCENT, "-")
        axes.plot(places, found, color=color, linewidth=1.4, linestyle=line, marker="" if len(found) > 9 else ".")
        reach = 1.15 * max(float(np.abs(curve).max()) for curve in (low, high, found))
        axes.set(xlim=(edges[0], edges[-1]), ylim=(-reach, reach), xlabel=picture.axis, ylabel="difference")
        shown = [place for place in _QUANTILES if edges[0] <= special.ndtri(place) <= edges[-1]]
        axes.xaxis.set_major_locator(FixedLocator(list(special.ndtri(shown))))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: f"{special.ndtr(place):g}"))

    where, kept = _where(result), _band_kept(picture)
    alt = (
        f"Observed and declared density of {where}, from {counted(picture.count, 'value')}, by the {picture.axis}, "
        f"and below them the difference of the distribution functions in standard errors. It {kept}."
    )
    caption = f"{where}: observed (bars) and declared (line); below, their difference in standard errors, which {kept}"
    return draw(paint, alt, caption, below=difference, height=320)


def _band_kept(picture: Counts | PairedCounts) -> str:
    """Return that a picture stays inside its band, or where it lies farthest outside and by how many values."""
    worst = leaves(picture)
    if worst is None:
        return "stays inside its 99% band"
    place, found = float(picture.quantiles[worst]), picture.below[worst]
    low, high = (int(edge[worst]) for edge in picture.band)
    side, at = "below", f"{place:.2g}"
    if place > 0.5:
        low, found, high = picture.count - high, picture.count - found, picture.count - low
        side, at = "above", f"1 − {1.0 - place:.2g}"
    return (
        f"leaves its 99% band, farthest at quantile {at}: too {'many' if found > high else 'few'} values lie {side}, "
        f"{found:,} of {picture.count:,} where the band has {low:,} to {high:,}"
    )


def _residuals(picture: Residuals, result: Result) -> Drawing:
    shares = np.array(picture.shares)
    edges = np.linspace(-picture.widest, picture.widest, len(shares) + 1)
    cdf = np.array([NormalDist().cdf(edge) for edge in edges])
    cdf[0], cdf[-1] = 0.0, 1.0
    middle = 0.5 * (edges[1:] + edges[:-1])
    expected = np.diff(cdf)
    spread = float(np.sqrt((shares * middle**2).sum()))

    def paint(axes: Axes) -> None:
        _densities(axes, edges, shares, expected, result.verdict == Verdict.VIOLATED)
        axes.set(xlabel="whitened residual", xlim=(edges[0], edges[-1]))

    excess = float(0.5 * np.abs(shares - expected).sum())
    alt = (
        f"Histogram of {counted(picture.count, 'whitened residual')} of {_where(result)} with the density of a "
        f"standard normal. Their standard deviation is about {spread:.2f} where 1 is expected; histogram and normal "
        f"law differ by {excess:.1%} of the residuals."
    )
    caption = f"{_where(result)}: whitened residuals, observed (bars) and declared, which is N(0, 1) (line)"
    return draw(paint, alt, caption)


def _densities(
    axes: Axes, edges: NDArray[np.float64], observed: NDArray[np.float64], declared: NDArray[np.float64], wrong: bool
) -> None:
    """Draw the observed shares between edges as bars, and the declared ones as a line."""
    steps, color = np.diff(edges), BAD if wrong else ACCENT
    axes.stairs(observed / steps, edges, fill=True, color=BAND, edgecolor=color, linewidth=0.8, label="observed")
    axes.stairs(declared / steps, edges, color=INK, linewidth=1.4, baseline=None, label="declared")
    axes.set(ylabel="density", yticks=[])
    axes.legend(loc="upper right", fontsize=10.5, frameon=False, handlelength=1.2)


def _covariances(picture: Covariances, result: Result) -> Drawing:
    predicted, observed, error = (np.array(x) for x in (picture.predicted, picture.observed, picture.error))
    # One interval for all pairs together.
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


def _rate(picture: RatePicture, result: Result) -> Drawing:
    widths, distances, errors = (np.array(x) for x in (picture.widths, picture.distances, picture.errors))

    def paint(axes: Axes) -> None:
        axes.errorbar(widths, distances, _QUANTILE * errors, fmt="o", color=ACCENT, markersize=5)
        centre = np.exp(np.log(widths).mean())
        level = np.exp(np.log(np.maximum(distances, 1e-300)).mean())
        ratio = widths / centre
        axes.fill_between(widths, level * ratio**picture.low, level * ratio**picture.high, color=BAND, linewidth=0)
        axes.plot(widths, level * ratio**picture.slope, color=INK, linewidth=1.2)
        _widths(axes, widths)
        axes.set(yscale="log", ylabel="distance")
        axes.yaxis.set_major_formatter(_plain())
        axes.yaxis.set_minor_formatter(_plain() if distances.max() < 10 * distances.min() else NullFormatter())

    slope = f"{number(picture.slope)} [{number(picture.low)}, {number(picture.high)}]"
    alt = (
        f"Distance to the limit against the width, {number(float(widths.min()))} to {number(float(widths.max()))}, on "
        f"logarithmic axes, of {_where(result)}. The fitted slope is {slope}."
    )
    return draw(paint, alt, f"{_where(result)}: rate in the width, slope {slope}")


def limit_distances(results: Sequence[Result]) -> Drawing | None:
    """Return observed distances from the limit, and what the width allows, against the width."""
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
        _widths(axes, widths)
        axes.set_ylim(0, 1.15 * max(observed.max(), allowed.max()))
        axes.set_ylabel("distance from the limit")
        axes.grid(True, axis="y")
        axes.legend(loc="best", fontsize=10.5, framealpha=0.9, facecolor=svg.PAPER, edgecolor=GRID)

    farthest = int(np.argmax(observed / allowed))
    alt = (
        f"Distance from the limit against the width for {counted(len(shown), 'result')}: observed, and computed for "
        f"the width with its error. {int(bad.sum())} of them are violated. The largest share of what is allowed is "
        f"{observed[farthest]:.3g} of {allowed[farthest]:.3g}, at width {widths[farthest]:g}; the rest of the "
        f"distance is sampling error."
    )
    return draw(paint, alt, "Distance from the limit against the width: observed (dots) and computed (bars)")


def uniformity(p_values: Sequence[float], test: Outcome) -> Drawing:
    """Return the distribution function of first-look p-values against that of a right simulator."""
    values = np.sort(np.array(p_values))
    picture = Counts(cdf_of_uniform(values, 0.0)["below"], len(values))
    low, high = (edge / picture.count for edge in picture.band)

    def paint(axes: Axes) -> None:
        axes.fill_between([0, *QUANTILES, 1], [0, *low, 1], [0, *high, 1], color=BAND, linewidth=0)
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8)
        steps = np.arange(1, len(values) + 1) / len(values)
        axes.step([0, *values, 1], [0, *steps, 1], where="post", color=ACCENT, linewidth=1.6)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="first-look p-value", ylabel="share of units below")

    alt = (
        f"Distribution function of the first-look p-values of {counted(len(values), 'unit')} against the diagonal that "
        f"a right simulator follows. It {_band_kept(picture)}. The largest distance is {test.effect:.3g}, "
        f"p = {chance(test.p_value)}."
    )
    return draw(paint, alt, "First-look p-values, one of each unit, against uniform", height=320)


def visited(shapes: Counter[tuple[int, int, int]]) -> Drawing | None:
    """Return the visited widths and numbers of positions, with larger marks for more heads."""
    if not shapes:
        return None
    widths, positions, heads = (np.array(column, dtype=float) for column in zip(*sorted(shapes), strict=True))

    def paint(axes: Axes) -> None:
        axes.scatter(widths, positions, s=18 * np.sqrt(heads) + 4, color=ACCENT, alpha=0.55, linewidths=0)
        axes.plot([1, max(2.0, positions.max())], [1, max(2.0, positions.max())], color=MUTED, linewidth=0.8)
        _widths(axes, widths)
        axes.set(ylim=(0, positions.max() + 1), ylabel="positions s")
        axes.grid(True)

    alt = (
        f"Widths and numbers of positions of {counted(len(shapes), 'shape')}: widths {widths.min():g} to "
        f"{widths.max():g}, positions {positions.min():g} to {positions.max():g}, heads {heads.min():g} to "
        f"{heads.max():g}. On {int((positions > widths).sum())} of them there are more positions than the width."
    )
    return draw(paint, alt, "Visited shapes: width, positions, and heads (larger marks); left of the line s > n")


def moves(points: Sequence[tuple[float, float]]) -> Drawing | None:
    """Return effects of a run against those of its baseline, in units of what must be caught."""
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
        f"Effects of {counted(len(points), 'result')} in this run against those in the baseline, in units of what must "
        f"be caught; equal effects lie on the diagonal. The farthest from it went from {before[farthest]:.3g} to "
        f"{after[farthest]:.3g}."
    )
    return draw(paint, alt, "Effects in both runs, in units of what must be caught", height=320)


def _in_units(axes: Axes, name: str, values: Sequence[float]) -> tuple[float, float]:
    """Make an axis linear up to what must be caught and logarithmic beyond; return its limits."""
    low, high = min(-1.4, 1.25 * min(values)), max(1.4, 1.25 * max(values))
    ticks = [0.0, *(sign * 10.0**power for power in range(5) for sign in (-1, 1))]
    axis = axes.xaxis if name == "x" else axes.yaxis
    (axes.set_xscale if name == "x" else axes.set_yscale)("symlog", linthresh=2.0)
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_plain())
    return low, high


def _plain() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−"))


def _widths(axes: Axes, widths: NDArray[np.float64]) -> None:
    """Make the horizontal axis logarithmic, with labels at some of the widths."""
    known = np.unique(widths)
    step = -(-len(known) // _MOST_WIDTHS)
    axes.set(xscale="log", xlabel="width n", xlim=(0.75 * known[0], known[-1] / 0.75))
    axes.xaxis.set_major_locator(FixedLocator(list(known[::-1][::step][::-1])))
    axes.xaxis.set_major_formatter(_plain())
    axes.xaxis.set_minor_locator(NullLocator())


def _where(result: Result) -> str:
    return f"{result.check} on {layer_name(result.case)}"
