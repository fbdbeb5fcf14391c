"""Distances at finite width and their rates: how accurate, how fast, and what they say.

``python benchmarks/rates.py`` computes the divergence at width 1,024 and the Kolmogorov distance at a million, the
rates of outputs and scores in four metrics, and the gap that heads of fixed size leave. ``--write`` puts the tables
into benchmarks/rates.md; ``--quick`` runs everything at a tiny scale.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck.rates.gap import METRICS

_LAYERS = {
    "y, s = 4, H = 2": (ac.AttentionLayer(width=64), "outputs", None),
    "y, s = 4, H = 1": (ac.AttentionLayer(width=64, num_heads=1), "outputs", None),
    "y, ReLU inputs": (ac.AttentionLayer(width=64, activation="relu"), "outputs", None),
    "y, 1/n scores": (ac.AttentionLayer(width=64, score_scaling="1/n"), "outputs", None),
    "y, s = 1": (ac.AttentionLayer(width=64, seq_len=1, num_heads=1), "outputs", None),
    "score, i ≠ j": (ac.AttentionLayer(width=64), "scores", 1),
    "score, i = j": (ac.AttentionLayer(width=64), "scores", 0),
}
_WIDTHS, _QUICK_WIDTHS = (64, 128, 256, 512, 1024, 2048), (64, 128, 256, 512)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def timed(what: str, compute: Callable[[], ac.Distance]) -> tuple[str, ...]:
    """Return a distance with its relative error and the seconds it took."""
    started = time.perf_counter()
    found = compute()
    seconds = time.perf_counter() - started
    return what, f"{found.value:.4g}", f"{found.error:.2g}", f"{found.error / found.value:.1%}", f"{seconds:.1f}"


def accuracy(size: int | None) -> str:
    """Return the table of single distances."""
    layer = ac.AttentionLayer(width=1024)
    low_rank = [ac.AttentionLayer(width=64 * heads, num_heads=heads, head_dim=64) for heads in (1, 4, 16)]
    rows = [
        timed("KL of y, n = 1,024", lambda: ac.distance(layer, "kl", size=size)),
        timed("KS of y, n = 10⁶", lambda: ac.distance(layer, "ks", size=16 if size else None, width=10**6)),
        *(
            timed(
                f"KL of y, n = ∞, head_dim = 64, H = {each.num_heads}",
                lambda each=each: ac.distance(each, "kl", size=size, width=math.inf),  # type: ignore[misc]
            )
            for each in low_rank
        ),
    ]
    return table(("what", "value", "error (4 standard errors)", "relative", "seconds, one core"), rows)


def rates(widths: Sequence[int], size: int | None) -> str:
    """Return the table of rates."""
    rows = []
    for name, (layer, of, key) in _LAYERS.items():
        for metric in METRICS:
            found = ac.rate(layer, widths, metric, of=of, key=key, size=size)
            leading = f"{found.leading:.4g} ± {found.leading_error:.2g}"
            row = (name, metric, str(found.order), f"{found.predicted:g}", str(found.constant), leading)
            rows.append((*row, f"{found.curvature.value:.3g}"))
    return table(("law", "metric", "order", "predicted", "constant", "by the expansion", "curvature d"), rows)


def page(quick: bool) -> str:
    """Compute everything, on one thread, and return the page."""
    widths, size = (_QUICK_WIDTHS, 64) if quick else (_WIDTHS, None)
    with threadpool_limits(1):
        parts = [
            "# Distances from the limit and their rates",
            "`python benchmarks/rates.py --write` makes this page.",
            *(["A quick run: it shows that everything runs; its numbers mean little."] if quick else []),
            accuracy(size),
            f"Rates over widths {', '.join(map(str, widths))}, with 99% intervals: the order p of "
            "log D = a + p log n + e/n, and c of D = (c + d/n) n^predicted. The expansion gives c without a fit.",
            rates(widths, size),
        ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, print, and write if asked to."""
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


if __name__ == "__main__":
    main()
