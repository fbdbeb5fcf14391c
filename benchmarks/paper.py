"""Measure the cost of the paper's experiments at full size, and extrapolate it for literal matrices.

``python benchmarks/paper.py`` runs ``attncheck paper`` into a folder, times literal draws and those of ``attncheck
paper`` for each case at its published width, and extrapolates to the published number. ``--write`` updates
benchmarks/paper.md; ``--out`` keeps the folder (no wall time is given for one already finished). Times are processor
times of one thread; compared times come from one process.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck._lib.executors import processes
from attncheck._lib.measured import installed, table
from attncheck.paper import draw, units
from attncheck.paper.experiments import EXPERIMENTS, ExperimentCase
from attncheck.paper.publish import publish
from attncheck.paper.run import NAMES, PaperRun, manifest_of, settle_all


@dataclasses.dataclass(frozen=True)
class Scale:
    """Benchmark size.

    `share` is the fraction of the published draws, `seconds` the least processor time of a repeat, and `repeats` the
    number of repeats in a median.
    """

    names: tuple[str, ...]
    share: float
    seconds: float
    repeats: int
    workers: int


FULL = Scale(names=NAMES, share=1.0, seconds=0.5, repeats=5, workers=2)
QUICK = Scale(names=("fig2",), share=1e-3, seconds=1e-3, repeats=3, workers=1)


@dataclasses.dataclass(frozen=True)
class Timed:
    """Number of timed draws, and the median processor seconds per draw."""

    draws: int
    each: float


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a case at published size.

    `draws` counts all trials; `literal` uses n × n matrices, `here` is `attncheck.paper.draw`.
    """

    experiment: str
    label: str
    draws: int
    literal: Timed
    here: Timed


@dataclasses.dataclass(frozen=True)
class Whole:
    """Cost of the whole command.

    `wall` are seconds, 0 if all was there before; `sampling` and `computing` are processor seconds of trials (with
    estimates) and of computed values.
    """

    wall: float
    sampling: float
    computing: float
    units: int


def measure(scale: Scale, out: Path) -> tuple[list[Cost], Whole]:
    whole = whole_run(scale, out)
    with threadpool_limits(1):
        costs = [
            cost_of(name, configuration, scale)
            for name in scale.names
            if name in EXPERIMENTS
            for configuration in EXPERIMENTS[name].configurations
            if not configuration.limit
        ]
    return costs, whole


def whole_run(scale: Scale, out: Path) -> Whole:
    manifest = manifest_of(0, scale.share)
    before = len(list((out / "data").glob("*.npz")))
    started = time.perf_counter()
    data = settle_all(scale.names, out, manifest, processes(scale.workers))
    publish(scale.names, out, data, manifest)
    wall = 0.0 if before else time.perf_counter() - started
    every = [unit for name in scale.names for unit in units.units_of(name)]
    sampling, computing = (
        sum(seconds_of(unit, data, manifest) for unit in every if bool(unit.trial) == sampled)
        for sampled in (True, False)
    )
    return Whole(wall, sampling, computing, len(every))


def seconds_of(unit: units.Task, data: Path, manifest: PaperRun) -> float:
    return float(units.recall(unit, data, manifest.seed, manifest.scale)["seconds"])


def cost_of(name: str, configuration: ExperimentCase, scale: Scale) -> Cost:
    layer, rng = configuration.layer, draw.generator(np.random.SeedSequence(0))
    literal = timed(lambda size: ac.simulate(layer, size, method="direct"), scale)
    here = timed(lambda size: draw.DRAWN[configuration.of](layer, size, rng), scale)
    experiment = EXPERIMENTS[name]
    return Cost(name, configuration.label, experiment.draws * experiment.trials, literal, here)


def timed(run: Callable[[int], object], scale: Scale) -> Timed:
    """Time a large enough batch of draws, several times."""
    run(1)  # warms up
    size, taken = 1, clocked(run, 1)
    while taken < scale.seconds:
        # The first draws of a block cost more: at most four times as many at once.
        size = min(4 * size, 1 + int(1.2 * size * scale.seconds / taken))
        taken = clocked(run, size)
    repeats = [taken, *(clocked(run, size) for _ in range(scale.repeats - 1))]
    return Timed(size * len(repeats), float(np.median(repeats)) / size)


def clocked(run: Callable[[int], object], size: int) -> float:
    started = time.process_time()
    run(size)
    # Coarse clocks may show no time for a short call.
    return max(time.process_time() - started, 1e-9)


def by_experiment(costs: Sequence[Cost]) -> list[tuple[str, ...]]:
    names = list(dict.fromkeys(cost.experiment for cost in costs))
    groups = {name: [cost for cost in costs if cost.experiment == name] for name in names}
    return [summed(name, group) for name, group in [*groups.items(), ("all", list(costs))]]


def summed(name: str, costs: Sequence[Cost]) -> tuple[str, ...]:
    literal, here = literal_seconds(costs), sum(cost.draws * cost.here.each for cost in costs)
    return name, f"{literal / 3600:,.1f} h", f"{here:,.1f} s", f"{literal / here:,.0f}×"


def literal_seconds(costs: Sequence[Cost]) -> float:
    return sum(cost.draws * cost.literal.each for cost in costs)


def row(cost: Cost) -> tuple[str, ...]:
    each = (f"{1e6 * t.each:,.1f} µs ({t.draws:,})" for t in (cost.literal, cost.here))
    return cost.experiment, cost.label, f"{cost.draws:,}", *each, f"{cost.literal.each / cost.here.each:,.0f}×"


def told(whole: Whole, literal: float, workers: int) -> str:
    processor = whole.sampling + whole.computing
    parts = [
        (
            f"The whole command, {whole.units} items, takes {processor:,.0f} s of processor time: "
            f"{whole.sampling:,.0f} s for draws and the published estimator, {whole.computing:,.0f} s for computed "
            "values."
        )
    ]
    if whole.wall:
        parts.append(
            f"It took {whole.wall:,.0f} s of wall time with `--workers {workers}`, figures and pages included."
        )
        share = processor / (whole.wall * workers)
        if share < 0.8:
            parts.append(
                f"Other work ran on the machine, which left its processes {share:.0%} of a core each: alone it would "
                f"take about {processor / workers:,.0f} s."
            )
    parts.append(
        f"Literal matrices would take {literal / 3600:,.0f} h for the draws at finite width alone, "
        f"{literal / processor:,.0f} times as much as the whole command."
    )
    return " ".join(parts)


def report(costs: Sequence[Cost], whole: Whole, scale: Scale) -> str:
    sums = table(("experiment", "literal draws", "draws here", "factor"), by_experiment(costs))
    each = table(("experiment", "case", "draws", "literal (timed)", "here (timed)", "factor"), map(row, costs))
    parts = ["# The paper's experiments", "`python benchmarks/paper.py --write` makes this page."]
    if scale is QUICK:
        parts.append("A quick run: it shows that everything runs; its times mean nothing.")
    parts += [told(whole, literal_seconds(costs), scale.workers), sums, each]
    parts.append(
        f"Processor times of one thread per draw: median of {scale.repeats} repeats, both in one process, "
        "extrapolated to the published number; timed draws in brackets. Literal draws are those of "
        f'`attncheck.simulate(..., method="direct")`, the whole layer. {installed()}.'
    )
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time the paper's experiments against literal matrices.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/paper.md too")
    parser.add_argument("--quick", action="store_true", help="run one experiment at a tiny scale")
    parser.add_argument("--out", type=Path, help="a folder to keep")
    options = parser.parse_args(arguments)
    if options.write and options.quick:
        parser.error("--write: a quick run measures nothing worth keeping; leave --quick out")
    scale = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="attncheck-") as folder:
        page = report(*measure(scale, options.out or Path(folder)), scale)
    print(page, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
