"""Measure how fast stacks of attention layers approach their conjectured limit.

``python benchmarks/stacks.py`` computes the distance at several widths after every layer and prints a table per
stack; ``--write`` updates benchmarks/stacks.md. Draws are keyed, so figures are reproducible.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from scipy import stats
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck._lib.measured import installed, table
from attncheck.paper.stacks.distance import PARTS, averaged_parts, measured
from attncheck.paper.stacks.rate import StackRate, rates

# Two-sided 95%, from the spread of this many parts.
QUANTILE = float(stats.t.isf(0.025, PARTS - 1))


@dataclasses.dataclass(frozen=True)
class Scale:
    """Benchmark size.

    `draws` is per width without residual, half of it with one (which costs more); `forgotten` is for the comparison
    with averaged kernels.
    """

    widths: tuple[int, ...]
    draws: int
    forgotten: int
    depth: int


FULL = Scale(widths=(16, 32, 64, 128, 256, 512, 1024), draws=12_000, forgotten=2**14, depth=8)
QUICK = Scale(widths=(8, 16, 32, 64), draws=512, forgotten=256, depth=2)


def stacks_of(scale: Scale) -> tuple[ac.AttentionStack, ...]:
    """Return the stacks: s = 4, H = 2, unit variances, the paper's clip and ReLU, without and with residual."""
    return tuple(
        ac.AttentionStack(layer=ac.AttentionLayer(width=16), depth=scale.depth, activations=name, residual=residual)
        for name in ("clip", "relu")
        for residual in (False, True)
    )


def rows_of(found: Sequence[StackRate], gaps: Sequence[str]) -> list[tuple[str, ...]]:
    return [
        (
            str(rate.depth),
            *(f"{each.width * each.ks:.3f} ± {each.width * each.ks_error:.3f}" for each in rate.distances),
            interval(rate.constant, rate.constant_error),
            f"{rate.curvature:.1f}",
            f"{rate.p_value:.2g}",
            interval(rate.order, rate.order_error),
            f"{rate.distances[-1].width * rate.distances[-1].w1:.2f}",
            gap,
        )
        for rate, gap in zip(found, gaps, strict=True)
    ]


def interval(value: float, error: float) -> str:
    return f"{value:.3f} [{value - QUANTILE * error:.3f}, {value + QUANTILE * error:.3f}]"


def section(stack: ac.AttentionStack, scale: Scale) -> str:
    """Measure one stack; return its heading, table and cost."""
    started = time.process_time()
    draws = scale.draws // 2 if stack.residual else scale.draws
    found = rates(stack, scale.widths, draws)
    forgotten = averaged_parts(stack, scale.forgotten).swapaxes(0, 1)
    gaps = [measured(each, k, 0) for k, each in enumerate(forgotten, 1)]
    header = (
        "layers",
        *(f"n = {n:,}" for n in scale.widths),
        "c [95%]",
        "d",
        "p",
        "order [95%]",
        f"n · W1, n = {scale.widths[-1]:,}",
        "forgetful",
    )
    lines = rows_of(found, [f"{gap.ks:.5f} ± {gap.ks_error:.5f}" for gap in gaps])
    seconds = time.process_time() - started
    name = stack.describe().partition(" ")[2]
    cost = f"{draws:,} draws at each width, {seconds:.0f} processor seconds."
    return "\n\n".join([f"## {name}", table(header, lines), cost])


def report(sections: Sequence[str], scale: Scale) -> str:
    text = (
        "A conjecture, as the paper's theorem ends before a second layer's scores. Tables show n times the "
        "Kolmogorov distance between an output's law at width n and that of the recursion in docs/stacks.md, "
        "after every layer, ± one standard error; one layer is the theorem. The fit is c/n + d/n², p the "
        "chance of a worse one, and the order that of log D = a + order · log n + e/n. W1 is the Wasserstein "
        "distance in standard deviations of the limit. The last column is the distance to the limit with mean "
        "kernels, which the conjecture excludes."
    )
    parts = ["# Stacks (conjecture)", "`python benchmarks/stacks.py --write` makes this page.", text, *sections]
    if scale is QUICK:
        parts.insert(2, "A quick run: it shows that everything runs; its figures mean nothing.")
    return "\n\n".join([*parts, f"One thread. {installed()}."]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure how fast stacks approach their conjectured limit.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/stacks.md too")
    parser.add_argument("--quick", action="store_true", help="run everything at a tiny scale")
    options = parser.parse_args(arguments)
    if options.write and options.quick:
        parser.error("--write: a quick run measures nothing worth keeping; leave --quick out")
    scale = QUICK if options.quick else FULL
    with threadpool_limits(1):
        page = report([section(stack, scale) for stack in stacks_of(scale)], scale)
    print(page, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
