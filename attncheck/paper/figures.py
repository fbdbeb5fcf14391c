"""Panels of the published figures, redrawn, each followed by the computed difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from attncheck._lib.arrays import FloatArray
from attncheck._lib.text import number
from attncheck.paper.exact import gaussian
from attncheck.paper.results import Figure, SampledLaw
from attncheck.paper.units import grid
from attncheck.report.svg import BAND, INK, MUTED, SERIES

STYLES = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D")
SMALL = 10.5
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Title prefix of panels that show the paper's setting with attncheck's draws.
_REPEATED = "Published setting, own draws"


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot: title, caption, and a function that paints it on axes."""

    title: str
    caption: str
    paint: Callable[[Axes], None]

    def __str__(self) -> str:
        return f"{self.title}. {self.caption}."


def powers(axes: Axes, *, both: bool = False, across: bool = True) -> None:
    """Label the vertical logarithmic axis, or both axes if `both` is True, with powers of ten.

    If `across` is True, draw horizontal grid lines.
    """
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


def panels_of(figure: Figure) -> list[Panel]:
    """Return the panels, each published one before its computed counterpart."""
    if figure.kind == "histogram":
        return [_score_histograms(figure), _score_difference(figure), _output_histograms(figure), _tails(figure)]
    if figure.kind == "low rank":
        return [_densities(figure), _differences(figure, scaled=False), _estimates(figure), _gaps(figure)]
    return [_densities(figure), _differences(figure, scaled=True), _estimates(figure), _divergences(figure)]


# Densities and their differences ------------------------------------------------------------------


def _densities(figure: Figure) -> Panel:
    laws = figure.finite
    t = grid()
    many = "limit laws" if len(figure.limits) > 1 else "limit law"

    def paint(axes: Axes) -> None:
        for index, limit in enumerate(figure.limits.values()):
            axes.plot(t, limit.pdf(t), color=INK, linewidth=2.4, label=many if index == 0 else None)
        for law, color, line in zip(laws, SERIES, STYLES, strict=False):
            axes.plot(t, law.density, color=color, linestyle=line, linewidth=1.4, label=law.label)
        axes.set(xlim=(-2.5, 2.5), ylim=(0, None), xlabel="y", ylabel="density")
        axes.legend(loc="upper right", fontsize=SMALL, frameon=False, handlelength=2.4)

    title = f"{_REPEATED}: density of y, first trial"
    caption = f"Kernel density estimates from {figure.draws:,} own draws against the {many} (black)"
    return Panel(title, caption, paint)


def _differences(figure: Figure, *, scaled: bool) -> Panel:
    t = grid()

    def paint(axes: Axes) -> None:
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        for curve, color, line in zip(figure.curves.values(), SERIES, STYLES, strict=False):
            factor = curve.case.layer.width if scaled else 1.0
            value, error = factor * curve.value, factor * curve.error
            axes.fill_between(t, value - error, value + error, color=color, alpha=0.2, linewidth=0)
            axes.plot(t, value, color=color, linestyle=line, linewidth=1.6, label=curve.case.curve)
        label = "n × (density at width n − limit)" if scaled else "density at n − limit"
        axes.set(xlim=(-2.5, 2.5), xlabel="y", ylabel=label)
        plain_numbers(axes)
        axes.legend(loc="upper right", fontsize=SMALL, frameon=False, handlelength=2.4)

    caption = f"Computed difference of densities{', times n' if scaled else ''}; bands: error of the computation"
    return Panel("Computed: difference of densities from the limit", caption, paint)


# Divergences --------------------------------------------------------------------------------------


def _estimates(figure: Figure) -> Panel:
    laws = figure.finite
    floors = _floors(figure)
    by_heads = figure.kind == "low rank"
    at = np.array([law.case.layer.num_heads if by_heads else law.case.layer.width for law in laws], dtype=float)
    means, deviations = _over_trials(laws)

    def paint(axes: Axes) -> None:
        _floor_band(axes, np.concatenate(floors), (0.6 * at[0], at[-1] / 0.6))
        axes.errorbar(at, means, deviations, fmt="o-", color=SERIES[1], linewidth=1.2, markersize=6, capsize=3)
        axes.set(xscale="log", yscale="log", xlim=(0.6 * at[0], at[-1] / 0.6))
        axes.set(xlabel="heads H" if by_heads else "width n", ylabel="KL, published estimator")
        axes.set_ylim(min(1e-4, 0.5 * _lowest(floors)), 2.5 * float((means + deviations).max()))
        axes.xaxis.set_major_locator(FixedLocator(list(at)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        powers(axes)

    caption = (
        f"The published estimator of KL on own draws (mean ± sd of {figure.experiment.trials} trials) and its floor: "
        f"the limit against itself"
    )
    return Panel(f"{_REPEATED}: KL(finite ‖ limit)", caption, paint)


def _divergences(figure: Figure) -> Panel:
    points, fit = figure.points_of("y"), figure.fits[0]
    widths, values, errors = (
        np.array([getattr(p, name) for p in points], dtype=float) for name in ("width", "value", "error")
    )
    laws = figure.finite
    at = np.array([law.case.layer.width for law in laws], dtype=float)
    means, deviations = _over_trials(laws)
    floor = np.array(figure.sampled["limit"].kl)

    def paint(axes: Axes) -> None:
        ends = (0.5 * widths[0], 2 * widths[-1])
        _floor_band(axes, floor, ends, at_end=True)
        line = np.geomspace(4 * widths[0], widths[-1], 20)
        axes.plot(line, fit.constant.value / line**2, color=INK, linewidth=1.2)
        axes.errorbar(widths, values, errors, fmt="o", color=SERIES[0], markersize=6, capsize=3)
        axes.errorbar(at, means, deviations, fmt="s", color=SERIES[1], markersize=6, capsize=3, markerfacecolor="none")
        axes.text(
            widths[4], 6 * values[4], f"computed, fitted slope −{-fit.order.value:.2f}", color=SERIES[0], fontsize=11
        )
        axes.set(xscale="log", yscale="log", xlim=ends, xlabel="width n", ylabel="KL(finite ‖ limit)")
        axes.set_ylim(0.2 * values.min(), 8 * max(values.max(), means.max()))
        axes.text(1.6 * at[0], means[0], "published estimator", color=SERIES[1], fontsize=11, va="center")
        powers(axes, both=True)

    caption = "Computed KL (dots), a line of slope −2, the published estimator and its floor (band: range over trials)"
    return Panel("Computed: KL(finite ‖ limit) against n", caption, paint)


def _gaps(figure: Figure) -> Panel:
    laws = figure.finite
    means, deviations = _over_trials(laws)
    floor = np.concatenate(_floors(figure))

    def paint(axes: Axes) -> None:
        ends = (40.0, 4e6)
        _floor_band(axes, floor, ends, at_end=True)
        for law, mean, deviation, color, marker in zip(laws, means, deviations, SERIES, MARKERS, strict=False):
            points, gap = figure.points_of(law.label), figure.gap_of(law.label)
            widths = np.array([p.width for p in points], dtype=float)
            values, errors = (np.array([getattr(p, name) for p in points]) for name in ("value", "error"))
            axes.errorbar(widths, values, errors, fmt=f"{marker}-", color=color, markersize=5, linewidth=1.2)
            at = widths[:1]
            axes.errorbar(at, mean, deviation, fmt=marker, color=color, markersize=7, markerfacecolor="none", capsize=3)
            axes.axhline(gap.value, color=color, linewidth=0.9, linestyle=(0, (4, 2)))
            axes.text(ends[1], 1.15 * gap.value, f"{law.label}, n = ∞", color=color, fontsize=SMALL, ha="right")
        axes.set(xscale="log", yscale="log", xlim=ends, xlabel="width n, 64 neurons a head")
        axes.set(ylabel="KL(finite ‖ limit)")
        powers(axes, both=True)

    caption = "Computed KL (filled), what remains at n = ∞ (dashed), published estimator (open) and its floor (band)"
    return Panel("Computed: KL(finite ‖ limit) with heads of 64 neurons", caption, paint)


# Histograms ---------------------------------------------------------------------------------------


def _score_histograms(figure: Figure) -> Panel:
    laws = [figure.sampled["1/√n"], figure.sampled["1/n"]]
    t = np.linspace(-4, 4, 201)

    def paint(axes: Axes) -> None:
        for law, color in zip(laws, SERIES, strict=False):
            axes.stairs(_shares(figure, law), figure.edges, color=color, linewidth=1.3)
        axes.plot(t, gaussian(t, 1.0), color=INK, linewidth=1.6)
        axes.set(yscale="log", xlim=(-4, 4), ylim=(1e-4, 30), xlabel="score p₁₁ at n = 256", ylabel="density")
        axes.text(0.35, 4.0, "scores over n", color=SERIES[1], fontsize=11)
        axes.text(-3.9, 1.1, "scores over √n", color=SERIES[0], fontsize=11)
        axes.text(-3.9, 3.0, "line: N(0, 1)", color=INK, fontsize=11)
        powers(axes, across=False)

    caption = f"{figure.draws:,} own scores under both scalings, with the limit N(0, 1)"
    return Panel(f"{_REPEATED}: scores under two scalings", caption, paint)


def _score_difference(figure: Figure) -> Panel:
    curve, t = figure.curves["1/√n"], grid()
    value = curve.value
    bin_width = np.diff(figure.edges)[0]
    noise = np.sqrt(gaussian(t, 1.0) / (bin_width * figure.draws))

    def paint(axes: Axes) -> None:
        axes.fill_between(t, -noise, noise, color=BAND, linewidth=0)
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        axes.plot(t, value, color=SERIES[0], linewidth=1.8)
        axes.set(xlim=(-3, 3), xlabel="score p₁₁ at n = 256, over √n", ylabel="density − N(0, 1)")
        axes.text(0.02, 0.03, "band: one sd of a bar of the histogram", transform=axes.transAxes, fontsize=SMALL)
        axes.set_ylim(-1.7 * np.abs([*value, *noise]).max(), 1.4 * np.abs([*value, *noise]).max())
        plain_numbers(axes)

    caption = "Computed difference from N(0, 1) at n = 256, and the noise of a histogram of as many draws"
    return Panel("Computed: difference of the score's density from N(0, 1)", caption, paint)


def _output_histograms(figure: Figure) -> Panel:
    laws, t = _by_heads(figure), grid()

    def paint(axes: Axes) -> None:
        for law, color in zip(laws, SERIES, strict=False):
            axes.stairs(_shares(figure, law), figure.edges, color=color, linewidth=1.0, alpha=0.8)
            limit = figure.limits[law.label]
            axes.plot(t, limit.pdf(t), color=color, linewidth=1.8)
        axes.plot(t, gaussian(t, figure.limits[laws[0].label].variance()), color=INK, linewidth=1.2, linestyle="--")
        axes.set(yscale="log", xlim=(-3, 3), ylim=(1e-5, 4), xlabel="y at n = 256", ylabel="density")
        axes.text(-2.95, 2e-2, "H = 1", color=SERIES[0], fontsize=11)
        axes.text(-0.45, 1.5e-4, "H = 256", color=SERIES[1], fontsize=11)
        axes.text(-0.75, 4e-5, "dashed: Gaussian", color=INK, fontsize=SMALL)
        powers(axes, across=False)

    caption = f"{figure.draws:,} own outputs (steps) with the limit laws (lines) and the Gaussian (dashed)"
    return Panel(f"{_REPEATED}: outputs of 1 and 256 heads", caption, paint)


def _tails(figure: Figure) -> Panel:
    laws, t = _by_heads(figure), grid()
    limits = [figure.limits[law.label] for law in laws]
    from_gaussian = [limit.pdf(t) - gaussian(t, limit.variance()) for limit in limits]
    finite = [figure.curves[law.label].value for law in laws]

    def paint(axes: Axes) -> None:
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        for law, first, second, color in zip(laws, from_gaussian, finite, SERIES, strict=False):
            axes.plot(t, first, color=color, linewidth=1.8, label=f"{law.label}: limit − Gaussian")
            axes.plot(t, second, color=color, linewidth=1.4, linestyle="--", label=f"{law.label}: n = 256 − limit")
        axes.set(xlim=(-2.5, 2.5), xlabel="y", ylabel="difference of densities")
        axes.legend(loc="upper right", fontsize=SMALL, frameon=False, handlelength=2.0)
        axes.set_ylim(None, 1.6 * max(float(curve.max()) for curve in (*from_gaussian, *finite)))
        plain_numbers(axes)

    caption = "Computed: limit minus the Gaussian of the same variance (solid), and n = 256 minus the limit (dashed)"
    return Panel("Computed: differences of densities of y", caption, paint)


# What panels share --------------------------------------------------------------------------------


def _by_heads(figure: Figure) -> list[SampledLaw]:
    return [law for law in figure.finite if law.case.of == "outputs"]


def _shares(figure: Figure, law: SampledLaw) -> FloatArray:
    return law.counts / (figure.draws * np.diff(figure.edges))


def _over_trials(laws: Sequence[SampledLaw]) -> tuple[FloatArray, FloatArray]:
    """Return, for each law, the mean and the standard deviation over trials of the published estimates of KL."""
    estimates = np.array([law.kl for law in laws])
    return estimates.mean(axis=1), estimates.std(axis=1, ddof=1)


def _floors(figure: Figure) -> list[FloatArray]:
    """Return the published estimates of KL between two samples of each limit law, one per trial."""
    return [np.array(figure.sampled[label].kl) for label in figure.limits]


def _lowest(floors: Sequence[FloatArray]) -> float:
    return max(1e-12, min(float(floor.min()) for floor in floors))


def _floor_band(axes: Axes, floor: FloatArray, ends: tuple[float, float], *, at_end: bool = False) -> None:
    """Draw a band from the smallest to the largest of `floor`, the published estimates of KL for the limit law.

    These estimates compare two samples of the limit law. `ends` are the left and right ends of the band; `at_end` puts
    its label at the right end.
    """
    low, high = max(1e-12, float(floor.min())), float(floor.max())
    axes.fill_between(ends, low, high, color=BAND, linewidth=0)
    label = f"floor {number(float(f'{floor.mean():.1e}'))}: limit against itself"
    if at_end:
        middle = float(np.sqrt(low * high))
        axes.text(0.9 * ends[1], middle, label, fontsize=SMALL, ha="right", va="center", color=MUTED)
    else:  # the label is below the band, because error bars cross the band
        axes.text(1.1 * ends[0], 0.9 * low, label, fontsize=SMALL, ha="left", va="top", color=MUTED)
