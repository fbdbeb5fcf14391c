"""Compare the methods' speed with literal matrices and with drawing their normals.

``python benchmarks/speed.py`` measures on one thread and prints two tables; ``--write`` updates benchmarks/speed.md.
Compared tasks alternate within one process, and a ratio is the median over rounds. Times are processor time of the
thread, system calls included.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.stats import qmc
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck._lib.measured import installed, spread, table
from attncheck._lib.memory import DEFAULT_MEMORY
from attncheck.looks.examine import probed
from attncheck.looks.item import Item
from attncheck.looks.look import MOST_HELD, observe
from attncheck.looks.plan import Cost
from attncheck.methods import READINGS, Method
from attncheck.simulators import blocks
from attncheck.subject import Subject

FloatArray = NDArray[np.float64]

MEBIBYTE = 2**20
PUBLISHED = "literal loop, legacy generator"
MODERN = "literal loop, default_rng"
DIRECT_FILL = "12 n² normals into the direct reading's buffer"
WHOLE_FILL = "12 n² normals into one whole buffer"
COLLAPSED_FILL = "s·n normals into a buffer of a block of draws"
SMALL_FILL = "s·n normals into a buffer of one draw"

CHEAPEST = ac.AttentionLayer(width=2, seq_len=1, num_heads=1)
# Draws with which every check can be planned.
LEAST = 10**5


@dataclasses.dataclass(frozen=True)
class Scale:
    """Benchmark size.

    Attributes
    ----------
    rounds : int
    seconds : float
        Least time of a task per round.
    small, large : int
        Widths of the comparisons.
    growth : tuple of int
        Widths for the cost of the collapsed method.
    memory : tuple of (int, int)
        Widths and sizes of the direct draws whose memory is measured.
    look : (int, int)
        Draws of the two looks whose memory is compared.
    points : int
        Points per scrambling (of 8) of the reference cdf.
    """

    rounds: int
    seconds: float
    small: int
    large: int
    growth: tuple[int, ...]
    memory: tuple[tuple[int, int], ...]
    look: tuple[int, int]
    points: int


FULL = Scale(
    rounds=15,
    seconds=0.15,
    small=256,
    large=1024,
    growth=(256, 512, 1024, 2048, 4096),
    memory=((256, 50), (256, 200), (1024, 4), (4096, 1)),
    look=(10**5, 10**6),
    points=2**18,
)
QUICK = Scale(
    rounds=2,
    seconds=0.001,
    small=16,
    large=32,
    growth=(16, 32, 64),
    memory=((16, 50), (16, 200)),
    look=(1_000, 2_000),
    points=2**16,
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Table row; `met` is None without a target."""

    what: str
    measured: str
    target: str = "for scale"
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        return self.what, self.measured, self.target, verdict


@dataclasses.dataclass(frozen=True)
class Task:
    run: Callable[[int], object]
    block: int = 1

    def size_for(self, seconds: float) -> int:
        """Return the draws, in whole blocks, that take about `seconds`; the first call warms up."""
        self.run(self.block)
        return self.block * max(1, round(seconds / (self.time(self.block) * self.block)))

    def time(self, size: int) -> float:
        started = time.process_time()
        self.run(size)
        # Coarse clocks may show no time for a short call.
        return max(time.process_time() - started, 1e-9) / size


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds per draw of each task, one per round."""

    seconds: Mapping[str, FloatArray]

    def typical(self, name: str) -> float:
        return float(np.median(self.seconds[name]))

    def ratios(self, slow: str, fast: str) -> FloatArray:
        return self.seconds[slow] / self.seconds[fast]

    def at_least(self, slow: str, fast: str, target: float) -> tuple[str, str, bool]:
        """Return measured value, target and whether `fast` is `target` times faster."""
        ratios = self.ratios(slow, fast)
        return spread(ratios, "×", ",.0f"), f"at least {target:,.0f}×", bool(np.median(ratios) >= target)

    def at_most(self, slow: str, fast: str, target: float) -> tuple[str, str, bool]:
        """Return measured value, target and whether `slow` takes at most `target` times as long."""
        ratios = self.ratios(slow, fast)
        return spread(ratios, "×", ".2f"), f"at most {target}×", bool(np.median(ratios) <= target)


def take_turns(tasks: Mapping[str, Task], scale: Scale) -> Times:
    sizes = {name: task.size_for(scale.seconds) for name, task in tasks.items()}
    rounds = [{name: task.time(sizes[name]) for name, task in tasks.items()} for _ in range(scale.rounds)]
    return Times({name: np.array([times[name] for times in rounds]) for name in tasks})


def layer_of(width: int) -> ac.AttentionLayer:
    """Return the paper's layer, s = 4 and H = 2, at a width."""
    return ac.AttentionLayer(width=width, seq_len=4, num_heads=2)


def draws_per_block(layer: ac.AttentionLayer, method: Method) -> int:
    return max(1, blocks.BLOCK_ENTRIES // READINGS[ac.AttentionLayer][method](layer, 1).entries)


def method_task(layer: ac.AttentionLayer, method: Method) -> Task:
    """Return the task of drawing a layer with a method, through the public interface."""
    return Task(lambda size: ac.simulate(layer, size, method=method), draws_per_block(layer, method))


def filling_task(entries: int, buffers: int, draws: int) -> Task:
    """Return the task of drawing normals into a reused buffer.

    Each of the `draws` in the buffer has `entries` normals, redrawn `buffers` times.
    """
    rng = np.random.default_rng(0)
    buffer = np.zeros((draws, entries))

    def run(size: int) -> None:
        for _ in range(buffers * -(-size // draws)):
            rng.standard_normal(out=buffer)

    return Task(run, draws)


def literal_task(layer: ac.AttentionLayer, legacy: bool) -> Task:
    """Return a plain loop over draws, with NumPy's old or new generator."""
    source = np.random.RandomState(0) if legacy else np.random.default_rng(0)

    def run(size: int) -> None:
        for _ in range(size):
            literal_draw(layer, source)

    return Task(run)


def literal_draw(layer: ac.AttentionLayer, source: np.random.RandomState | np.random.Generator) -> FloatArray:
    """Draw the outputs of the paper's layer naively: a new array for every matrix."""
    n, s = layer.width, layer.seq_len

    def weights(*shape: int) -> FloatArray:
        return np.asarray(source.standard_normal(shape) / np.sqrt(n))

    inputs = np.clip(weights(s, n, n) @ source.standard_normal(n), -layer.clip, layer.clip)
    outputs = np.zeros((s, n))
    for _ in range(layer.num_heads):
        query, key, value, output = (weights(n, n) for _ in range(4))
        scores = np.exp((inputs @ query) @ (inputs @ key).T / np.sqrt(n))
        attention = scores / scores.sum(axis=1, keepdims=True)
        outputs += attention @ (inputs @ value @ output) / np.sqrt(layer.num_heads)
    return outputs


def time_methods(width: int, scale: Scale) -> Times:
    """Time the methods, the literal loop and plain normals at one width."""
    layer = layer_of(width)
    matrices = layer.seq_len + 4 * layer.num_heads
    vectors = layer.seq_len * width
    tasks = {
        "direct": method_task(layer, "direct"),
        DIRECT_FILL: filling_task(width**2, matrices, draws_per_block(layer, "direct")),
        WHOLE_FILL: filling_task(matrices * width**2, 1, 1),
        PUBLISHED: literal_task(layer, legacy=True),
        MODERN: literal_task(layer, legacy=False),
        "matrix-free": method_task(layer, "matrix-free"),
        "collapsed": method_task(layer, "collapsed"),
        COLLAPSED_FILL: filling_task(vectors, 1, draws_per_block(layer, "collapsed")),
        SMALL_FILL: filling_task(vectors, 1, 1),
    }
    return take_turns(tasks, scale)


def method_rows(scale: Scale, small: Times, large: Times) -> list[Row]:
    n, m = f"n = {scale.small:,}", f"n = {scale.large:,}"
    return [
        Row(f"collapsed against direct, {n}", *small.at_least("direct", "collapsed", 300)),
        Row(f"collapsed against direct, {m}", *large.at_least("direct", "collapsed", 1500)),
        Row(f"matrix-free against direct, {n}", *small.at_least("direct", "matrix-free", 50)),
        Row(f"matrix-free against direct, {m}", *large.at_least("direct", "matrix-free", 200)),
        Row(f"direct against {DIRECT_FILL}, {n}", *small.at_most("direct", DIRECT_FILL, 1.6)),
        Row(f"direct against {WHOLE_FILL}, {n}", *small.at_most("direct", WHOLE_FILL, 1.6)),
        Row(f"collapsed against {COLLAPSED_FILL}, {m}", *large.at_most("collapsed", COLLAPSED_FILL, 2.5)),
        Row(f"collapsed against {SMALL_FILL}, {m}", *large.at_most("collapsed", SMALL_FILL, 2.5)),
        *literal_rows(small, n),
        *literal_rows(large, m),
    ]


def literal_rows(times: Times, width: str) -> list[Row]:
    """Return the rows that compare with a plain loop like the published code's."""
    return [
        Row(f"{fast} against a {slow}, {width}", spread(times.ratios(slow, fast), "×", form))
        for slow in (PUBLISHED, MODERN)
        for fast, form in (("collapsed", ",.0f"), ("direct", ".2f"))
    ]


def reference_cdf(t: FloatArray, points: int, scrambles: int = 8) -> tuple[FloatArray, float]:
    """Return the limit's cdf of the paper's layer, and four standard errors at the worst point.

    Independent of attncheck's code, from the theorem: K = I, so that a row of scores is standard normal, and y given
    the scores has variance (|A^1_i|² + |A^2_i|²)/2. Integrates over all eight scores.
    """
    replicates = np.stack([replicate_cdf(t, points, [20250600846, k]) for k in range(scrambles)])
    standard = replicates.std(axis=0, ddof=1) / np.sqrt(scrambles)
    return replicates.mean(axis=0), float(4 * standard.max())


def replicate_cdf(t: FloatArray, points: int, seed: Sequence[int]) -> FloatArray:
    """Return the average of Φ(t/√v) over one set of scrambled Sobol points."""
    sobol = qmc.Sobol(8, scramble=True, bits=30, rng=np.random.default_rng(seed))
    scores = special.ndtri(sobol.random(points) + 2.0**-31).reshape(points, 2, 4)
    variances = (special.softmax(scores, axis=-1) ** 2).sum(axis=(1, 2)) / 2
    total = np.zeros(t.shape)
    for part in np.array_split(variances**-0.5, max(1, points // 1024)):
        total += special.ndtr(np.multiply.outer(t, part)).sum(axis=1)
    return np.asarray(total / points)


def limit_error(t: FloatArray, points: int) -> tuple[float, float]:
    """Return the largest error of the limit's cdf, and the reference's own error."""
    # By symmetry half of the reference is enough.
    negative = t[t <= 0]
    half, error = reference_cdf(negative, points)
    law = ac.limit(layer_of(64))
    lower = np.abs(law.cdf(negative) - half).max()
    upper = np.abs(law.cdf(-negative) - (1 - half)).max()
    return float(max(lower, upper)), error


def fresh_cdf_seconds(t: FloatArray) -> tuple[float, float]:
    """Return processor and wall seconds of a new law's cdf at `t`, without caches."""
    wall, processor = time.perf_counter(), time.process_time()
    ac.limit(layer_of(64)).cdf(t)
    return time.process_time() - processor, time.perf_counter() - wall


def limit_rows(scale: Scale) -> list[Row]:
    t = np.linspace(-4, 4, 401)
    first, *others = [fresh_cdf_seconds(t) for _ in range(1 + scale.rounds)]
    seconds, wall = np.array(others).T
    error, uncertainty = limit_error(t, scale.points)
    where = "limit cdf, 401 points from -4 to 4"
    return [
        Row(
            f"{where}: sup error against 8 × {scale.points:,} other points",
            f"{error:.1e} (reference ± {uncertainty:.0e})",
            "at most 1e-5",
            error <= 1e-5,
        ),
        Row(
            f"{where}: fresh law each time",
            f"{spread(seconds, ' s', '.3f')}, wall {np.median(wall):.3f} s",
            "at most 0.15 s",
            bool(np.median(seconds) <= 0.15),
        ),
        Row(
            f"{where}: first law in the process",
            f"{first[0]:.3f} s, wall {first[1]:.3f} s",
            "at most 0.15 s",
            first[0] <= 0.15,
        ),
    ]


def growth_row(scale: Scale) -> Row:
    tasks = {str(n): method_task(layer_of(n), "collapsed") for n in scale.growth}
    times = take_turns(tasks, dataclasses.replace(scale, seconds=scale.seconds / 2))
    cost = np.array([times.typical(name) for name in tasks])
    slope = float(np.polyfit(np.log(scale.growth), np.log(cost), 1)[0])
    last = float(np.log2(cost[-1] / cost[-2]) / np.log2(scale.growth[-1] / scale.growth[-2]))
    listed = ", ".join(f"{1e6 * seconds:.1f}" for seconds in cost)
    return Row(
        f"exponent of the cost of collapsed, n = {', '.join(f'{n:,}' for n in scale.growth)}",
        f"{slope:.2f}, at the end {last:.2f}; {listed} µs a draw",
        "1: linear (up to 1.1)",
        max(slope, last) <= 1.1,
    )


def memory_row(width: int, size: int) -> Row:
    """Return the row on the direct method's working memory, without its results."""
    layer = layer_of(width)
    ac.simulate(layer, 1, method="direct")
    tracemalloc.start()
    draws = ac.simulate(layer, size, method="direct")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    working = peak - sum(array.nbytes for array in draws.as_dict().values())
    limit = DEFAULT_MEMORY
    return Row(
        f"working memory of direct, n = {width:,}, {size} draw{'s' if size > 1 else ''}",
        f"{working / MEBIBYTE:.1f} MiB",
        f"at most {limit // MEBIBYTE} MiB",
        working <= limit,
    )


def look_peak(draws: int, held: float) -> float:
    """Return the peak MiB of a look at the cheapest layer by all exactness checks, in chunks of 2^14.

    A check keeps `held` raw numbers before it condenses them.
    """
    subject = Subject.of("attncheck.subject:collapsed")
    plan = probed([Item("exactness", CHEAPEST)], subject, 0, Cost(max(draws, LEAST), 5e-4, 0.99))
    plan = dataclasses.replace(plan, chunk=min(draws, 2**14), sizes=dict.fromkeys(plan.sizes, draws))
    with mock.patch("attncheck.looks.look.MOST_HELD", held):
        tracemalloc.start()
        observe(plan, list(plan.sizes), 1, subject, np.random.default_rng(0), np.random.SeedSequence(0))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak / MEBIBYTE


def look_rows(scale: Scale) -> list[Row]:
    """Return the rows on memory of the small and the large look, and of one that keeps all data."""
    few, many = scale.look
    condensed, whole = ([look_peak(draws, held) for draws in scale.look] for held in (MOST_HELD, math.inf))
    what = f"memory of a look, n = 2, s = 1, H = 1, {few:,} and {many:,} draws"
    return [
        Row(what, "{:.1f} and {:.1f} MiB".format(*condensed), "at most 1.2×", condensed[1] <= 1.2 * condensed[0]),
        Row(f"{what}, all data held", "{:.1f} and {:.1f} MiB".format(*whole)),
    ]


def time_table(scale: Scale, small: Times, large: Times) -> str:
    rows = [(name, f"{1e6 * small.typical(name):,.1f}", f"{1e6 * large.typical(name):,.1f}") for name in small.seconds]
    return table(("processor µs per draw, median", f"n = {scale.small:,}", f"n = {scale.large:,}"), rows)


def setting(scale: Scale) -> str:
    return (
        f"s = 4, H = 2, one thread of {os.cpu_count()} cores, {scale.rounds} rounds; median (quartiles) of "
        f"processor time. {installed()}."
    )


def measure(scale: Scale) -> tuple[list[Row], str]:
    """Measure everything on one thread; return the rows and the table of times."""
    with threadpool_limits(1):
        limits = limit_rows(scale)
        small, large = time_methods(scale.small, scale), time_methods(scale.large, scale)
        memory = [memory_row(width, size) for width, size in scale.memory]
        rows = [*method_rows(scale, small, large), growth_row(scale), *limits, *memory, *look_rows(scale)]
    return rows, time_table(scale, small, large)


def report(rows: Sequence[Row], times: str, scale: Scale) -> str:
    figures = table(("what", "measured", "target", "verdict"), [row.cells() for row in rows])
    parts = ["# Speed", "`python benchmarks/speed.py --write` makes this page.", setting(scale), figures, times]
    if scale is QUICK:
        parts.insert(2, "A quick run: it shows that everything runs; its times and verdicts mean nothing.")
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time attncheck's methods on one thread.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/speed.md too")
    parser.add_argument("--quick", action="store_true", help="run everything at a tiny scale")
    options = parser.parse_args(arguments)
    if options.write and options.quick:
        parser.error("--write: a quick run measures nothing worth keeping; leave --quick out")
    scale = QUICK if options.quick else FULL
    page = report(*measure(scale), scale)
    print(page, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
