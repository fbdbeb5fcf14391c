"""Measure distances at finite width and their rates: accuracy, time and values.

``python benchmarks/rates.py`` computes the divergence at width 1,024, the Kolmogorov distance at a million, the rates
of outputs and scores in four metrics, those of sums of scores with shared matrices, of heads of fixed size and of
other weights, and the draws that distinguish regimes. ``--write`` updates benchmarks/rates.md and docs/rates.svg;
``--quick`` runs at a tiny scale.
"""

from __future__ import annotations

import argparse
import base64
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck.layers.nonlinearity import tanh
from attncheck.layers.program import Program
from attncheck.layers.regimes import REGIMES
from attncheck.theory.rates.gap import METRICS
from attncheck.theory.rates.quadratic import METRICS as METRICS_OF_PROGRAMS
from attncheck.theory.rates.rate import HALF_ORDER_WIDTHS, LITERAL_WIDTHS, fit
from attncheck.theory.rates.regimes import prediction

_LAYERS = {
    "y, s = 4, H = 2": (ac.AttentionLayer(width=64), "outputs", None),
    "y, s = 4, H = 1": (ac.AttentionLayer(width=64, num_heads=1), "outputs", None),
    "y, ReLU inputs": (ac.AttentionLayer(width=64, activation="relu"), "outputs", None),
    "y, 1/n scores": (ac.AttentionLayer(width=64, score_scaling="1/n"), "outputs", None),
    "y, s = 1": (ac.AttentionLayer(width=64, seq_len=1, num_heads=1), "outputs", None),
    "score, i ≠ j": (ac.AttentionLayer(width=64), "scores", 1),
    "score, i = j": (ac.AttentionLayer(width=64), "scores", 0),
}
_QUICK_LAYERS = ("y, s = 4, H = 2", "score, i ≠ j")
# Matrices of the summed scores.
_SUMS = {
    "A·B, B·C, C·A": ("AB", "BC", "CA"),
    "A·B, C·D, E·F": ("AB", "CD", "EF"),
    "A·B, B·C, C·D, D·A": ("AB", "BC", "CD", "DA"),
}
_LOW_RANK = ac.AttentionLayer(width=64, num_heads=1, head_dim=8)
_WEIGHTS = ("uniform", "rademacher", "truncated normal", "student5")
# Rates need more draws than distances: 512 bias the order of a divergence of scores by -0.02 on average.
_LITERAL_DRAWS, _RATE_DRAWS, _DRAWS = 32_768, 2048, 512
# Widths of the plot, and draws at each.
_PICTURE = {16: 2048, 64: 1024, 256: 512, 1024: 256, 4096: 128, 16_384: 64, 131_072: 32, 1_000_000: 32}
_QUICK_PICTURE = {16: 64, 64: 64, 256: 64, 1024: 64}
_SVG = Path(__file__).resolve().parents[1] / "docs" / "rates.svg"
_WIDTHS, _QUICK_WIDTHS = (64, 128, 256, 512, 1024, 2048), (64, 128, 256, 512)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def timed(what: str, compute: Callable[[], ac.Distance]) -> tuple[str, ...]:
    """Return a distance with its relative error and seconds."""
    started = time.perf_counter()
    found = compute()
    seconds = time.perf_counter() - started
    return what, f"{found.value:.4g}", f"{found.error:.2g}", f"{found.error / found.value:.1%}", f"{seconds:.1f}"


def accuracy(size: int | None) -> str:
    layer = ac.AttentionLayer(width=1024)
    low_rank = [ac.AttentionLayer(width=64 * heads, num_heads=heads, head_dim=64) for heads in (1, 4, 16)]
    rows = [
        timed("KL of y, n = 1,024", lambda: ac.distance(layer, "kl", size=size)),
        timed("KS of y, n = 10⁶", lambda: ac.distance(layer, "ks", size=16 if size else None, width=10**6)),
        *(
            timed(
                f"KL of y, n = ∞, head_dim = 64, H = {each.num_heads}",
                functools.partial(ac.distance, each, "kl", size=size, width=math.inf),
            )
            for each in low_rank
        ),
    ]
    return table(("what", "value", "error (4 standard errors)", "relative", "seconds, one core"), rows)


def rates(widths: Sequence[int], size: int | None, names: Iterable[str] = _LAYERS) -> str:
    rows = []
    for name in names:
        layer, of, key = _LAYERS[name]
        for metric in METRICS:
            found = ac.rate(layer, widths, metric, of=of, key=key, size=size)
            rows.append(row_of(name, found))
    return table(("law", "metric", "order", "predicted", "constant", "by the expansion", "curvature d"), rows)


def sum_of_scores(sides: Sequence[str]) -> Program:
    """Return a program with scores of these matrices, all on tanh of one vector."""
    program = Program()
    x = program.nonlin(tanh(), program.initial("h"))
    weights = {name: program.weight(name) for name in dict.fromkeys("".join(sides))}
    for pair in sides:
        left, right = (program.matmul(weights[name], x) for name in pair)
        program.score(left, right)
    return program


def row_of(name: str, found: ac.Rate) -> tuple[str, ...]:
    leading = f"{found.leading:.4g} ± {found.leading_error:.2g}"
    numbers = (str(found.order), f"{found.predicted:g}", str(found.constant), leading, f"{found.curvature.value:.3g}")
    return name, found.metric, *numbers


def other_rates(quick: bool) -> str:
    """Return the table of rates of sums of scores, heads of fixed size and other weights."""
    rows = []
    size, literal = (64, 2048) if quick else (_DRAWS, _LITERAL_DRAWS)
    # Quick runs take the first of each kind, and the first of another order.
    sums, laws = (list(_SUMS)[:2], _WEIGHTS[1:2]) if quick else (list(_SUMS), _WEIGHTS)
    for name in sums:
        sides = _SUMS[name]
        for metric in METRICS_OF_PROGRAMS:
            found = ac.rate(sum_of_scores(sides), HALF_ORDER_WIDTHS, metric, of="scores", size=size)
            rows.append(row_of(f"sum of scores {name}", found))
    for metric in METRICS:
        widths = _QUICK_WIDTHS if quick else _WIDTHS
        found = ac.rate(_LOW_RANK, widths, metric, size=size)
        stays = "" if found.gap is None else f", beside {found.gap.value:.3g} ± {found.gap.error:.1g} that stays"
        rows.append(row_of(f"y, H = 1, head_dim = 8{stays}", found))
    for weights in laws:
        found = ac.rate(ac.AttentionLayer(width=16), (8, *LITERAL_WIDTHS[:3]), weights=weights, size=literal)
        rows.append(row_of(f"{weights} weights, y", found))
    return table(("law", "metric", "order", "predicted", "constant", "by the expansion", "curvature d"), rows)


def regimes() -> str:
    """Return the table of regimes: predictions, and draws that reject their neighbours."""
    rows = []
    for name in REGIMES:
        found = prediction(name)
        rows.append((name, found.layer.describe(), found.against, f"{found.separation:.4f}", f"{found.draws():,}"))
    return table(("regime", "layer", "neighbour", "KS between them", "draws"), rows)


def power(value: float) -> str:
    """Format a power of ten as an axis label, e.g. 10⁻³."""
    return "10" + f"{round(math.log10(value))}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def picture(quick: bool) -> str:
    """Return an SVG plot of four distances against the width."""
    from matplotlib.axes import Axes

    from attncheck.report import svg

    chosen = _QUICK_PICTURE if quick else _PICTURE
    layer = ac.AttentionLayer(width=64)
    found = {
        metric: [ac.distance(layer, metric, width=width, size=size) for width, size in chosen.items()]
        for metric in METRICS
    }
    names = {"tv": "total variation", "w1": "Wasserstein-1", "ks": "Kolmogorov", "kl": "KL divergence"}
    colors = dict(zip(names, (svg.MUTED, svg.INK, svg.ACCENT, svg.BAD), strict=True))

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for metric, name in names.items():
            widths = [each.width for each in found[metric]]
            values = [each.value for each in found[metric]]
            errors = [min(each.error, 0.9 * each.value) for each in found[metric]]
            order = fit(metric, found[metric]).order
            half = 0.5 * (order.high - order.low)
            text = f"{name}: order \N{MINUS SIGN}{-order.value:.3f} ± {half:.3f}"
            place = (0.02, 0.285 - 0.075 * list(names).index(metric))
            behind = {"facecolor": svg.PAPER, "edgecolor": "none", "pad": 2.0}
            axes.annotate(text, place, xycoords="axes fraction", color=colors[metric], bbox=behind)
            axes.plot(widths, values, color=colors[metric], linewidth=1.4)
            axes.errorbar(widths, values, yerr=errors, color=colors[metric], fmt="o", markersize=4, linewidth=1.2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: power(value))
            axis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel("width n")
        axes.set_ylabel("distance of y from the limit")
        axes.grid(visible=True)

    alt = "Four distances of an output's law from the limit against the width, on logarithmic axes: straight lines."
    drawing = svg.draw(paint, alt, "Distances from the limit", width=640, height=400)
    return base64.b64decode(drawing.source.partition(",")[2]).decode()


def page(quick: bool) -> str:
    widths, size = (_QUICK_WIDTHS, 64) if quick else (_WIDTHS, _DRAWS)
    with threadpool_limits(1):
        parts = [
            "# Distances from the limit and their rates",
            "`python benchmarks/rates.py --write` makes this page.",
            *(["A quick run: it shows that everything runs; its numbers mean little."] if quick else []),
            accuracy(size),
            (
                f"Rates at widths {', '.join(map(str, widths))}, with 99% intervals: the order p of log D = a + p "
                "log n + e/n, and c of D = (c + d/n) n^predicted. The expansion gives c without a fit."
            ),
            rates(widths, size, _QUICK_LAYERS) if quick else rates(widths, _RATE_DRAWS),
            (
                f"Sums of scores at widths {', '.join(map(str, HALF_ORDER_WIDTHS))}: the order of the third "
                "cumulant, -1/2 if three scores share matrices cyclically. With a head_dim, distances are from "
                "its own infinite-width law. Other weights use literal matrices at small widths, with large "
                "curvature."
            ),
            other_rates(quick),
            (
                "Regimes: distances between neighbouring predictions, and the draws that reject the neighbour by a "
                "Kolmogorov–Smirnov test at level 1e-6 with power at least 0.99."
            ),
            regimes(),
        ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compute distances from the limit and their rates.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/rates.md too")
    parser.add_argument("--quick", action="store_true", help="run everything at a tiny scale")
    options = parser.parse_args(arguments)
    if options.write and options.quick:
        parser.error("--write: a quick run measures nothing worth keeping; leave --quick out")
    text = page(options.quick)
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
        _SVG.write_text(picture(options.quick), encoding="utf-8")


if __name__ == "__main__":
    main()
