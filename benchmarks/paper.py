"""The paper's figures in numbers, next to computed values, and rates of convergence."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attncheck as ac
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.measured import table
from attncheck.commands import cli
from benchmarks.pages import WORKERS, children_seconds, over

FIGURES = ("fig1", "fig2", "fig3", "fig5")
METRICS = ("ks", "w1", "tv", "kl")
#: Laws by name: layer, what is looked at, and which key of a score.
LAWS: dict[str, tuple[ac.AttentionLayer, str, int | None]] = {
    "y, s = 4, H = 2": (ac.AttentionLayer(width=64), "outputs", None),
    "y, s = 4, H = 1": (ac.AttentionLayer(width=64, num_heads=1), "outputs", None),
    "y, ReLU inputs": (ac.AttentionLayer(width=64, activation="relu"), "outputs", None),
    "y, H = 1, head_dim = 8": (ac.AttentionLayer(width=64, num_heads=1, head_dim=8), "outputs", None),
    "score, i ≠ j": (ac.AttentionLayer(width=64), "scores", 1),
}
WIDTHS, DRAWS = (64, 128, 256, 512, 1024, 2048), 512


def figures(tiny: bool) -> str:
    """Run ``attncheck paper``, and return its numbers and what they cost."""
    names, scale, workers = (FIGURES[1:2], "0.001", 0) if tiny else (FIGURES, "1", WORKERS)
    with tempfile.TemporaryDirectory(prefix="attncheck-") as folder:
        options = ["--out", folder, "--scale", scale, "--workers", str(workers)]
        before, started = children_seconds() + time.process_time(), time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            code = cli.main(["paper", *names, *options])
        assert code == ExitCode.CONSISTENT
        seconds, processor = time.perf_counter() - started, children_seconds() + time.process_time() - before
        numbers = (Path(folder) / "numbers.md").read_text(encoding="utf-8")
    shown = re.sub(r"^#.*\n+", "", numbers, count=1).replace("\n## ", "\n### ")
    cost = f"The command takes {processor:,.0f} s of processor time, {seconds:,.0f} s with `--workers {WORKERS}`."
    return f"{shown.strip()}\n\n{cost}"


def distances(tiny: bool) -> str:
    """Return the table of two far distances, with their errors."""
    layer = ac.AttentionLayer(width=1024)
    size, wide = (16, 10**4) if tiny else (None, 10**6)
    rows = [
        timed("KL of y, n = 1,024", lambda: ac.distance(layer, "kl", size=size)),
        timed("KS of y, n = 10⁶", lambda: ac.distance(layer, "ks", size=size, width=wide)),
    ]
    return table(("what", "value", "error (4 standard errors)", "relative", "seconds, one core"), rows)


def timed(what: str, compute: Callable[[], ac.Distance]) -> tuple[str, ...]:
    """Return a distance with its relative error and seconds."""
    started = time.perf_counter()
    found = compute()
    seconds = time.perf_counter() - started
    return what, f"{found.value:.4g}", f"{found.error:.2g}", f"{found.error / found.value:.1%}", f"{seconds:.1f}"


def rates_of(name: str, tiny: bool) -> list[tuple[str, ...]]:
    """Return the rates of a law in every metric."""
    layer, of, key = LAWS[name]
    widths, size = (WIDTHS[:4], 16) if tiny else (WIDTHS, DRAWS)
    rows: list[tuple[str, ...]] = []
    for metric in METRICS:
        found = ac.rate(layer, widths, metric, of=of, key=key, size=size)
        leading = f"{found.leading:.4g} ± {found.leading_error:.2g}"
        rows.append((name, metric, str(found.order), f"{found.predicted:g}", str(found.constant), leading))
    return rows


def page(tiny: bool) -> list[str]:
    """Measure everything, and return the page."""
    names = list(LAWS)[: 1 if tiny else None]
    rates = over(functools.partial(rates_of, tiny=tiny), names, 0 if tiny else WORKERS)
    return [
        "# The paper",
        "## Figures in numbers",
        figures(tiny),
        "## Distances from the limit",
        distances(tiny),
        "## Rates",
        (
            f"At widths {', '.join(map(str, WIDTHS))}, with 99% intervals: the order p of log D = a + p log n + "
            "e/n, and c of D = (c + d/n) n^predicted. The expansion gives c without a fit. With a head_dim, "
            "distances are from its own infinite-width law."
        ),
        table(
            ("law", "metric", "order", "predicted", "constant", "by the expansion"),
            [row for rows in rates for row in rows],
        ),
    ]
