"""What the paper's experiments cost at full size, and what they would cost with literal matrices.

``python benchmarks/paper.py`` runs ``attncheck paper`` into a folder of its own, times some draws of the literal
reading for each configuration on the same machine and extrapolates them to the published number; ``--write`` also
puts the tables into benchmarks/paper.md. Times are processor times of one thread: on an idle machine wall time,
divided by the number of processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import attncheck as ac
from attncheck.measured import installed, table
from attncheck.paper import units
from attncheck.paper.experiments import EXPERIMENTS, Configuration
from attncheck.paper.publish import publish
from attncheck.paper.run import Manifest, manifest_of, settle_all


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes
    ----------
    names : tuple of str
        Experiments.
    share : float
        Of the published draws.
    seconds : float
        Least processor time of the literal draws of a configuration.
    workers : int
    """

    names: tuple[str, ...]
    share: float
    seconds: float
    workers: int


FULL = Scale(names=tuple(EXPERIMENTS), share=1.0, seconds=4.0, workers=2)
QUICK = Scale(names=("fig2",), share=1e-3, seconds=1e-3, workers=1)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Processor seconds of a configuration at published size.

    Attributes
    ----------
    experiment, label : str
    draws : int
        In all trials.
    timed : int
        Literal draws that were timed.
    literal : float
        Extrapolated from them.
    drawing : float
        Of the draws of ``attncheck paper``, extrapolated where only a share was made.
    estimating : float
        Of all else of its units: the limit's draws and kernel densities.
    """

    experiment: str
    label: str
    draws: int
    timed: int
    literal: float
    drawing: float
    estimating: float

    @property
    def factor(self) -> float:
        """How many times cheaper the draws are."""
        return self.literal / self.drawing


@dataclasses.dataclass(frozen=True)
class Whole:
    """The whole command: wall seconds, and processor seconds of what is computed in place of sampled."""

    wall: float
    computing: float
    units: int


def measure(scale: Scale) -> tuple[list[Cost], Whole]:
    """Run the experiments, then time literal draws."""
    with tempfile.TemporaryDirectory(prefix="attncheck-") as folder:
        manifest, out = manifest_of(0, scale.share), Path(folder)
        started = time.perf_counter()
        data = settle_all(scale.names, out, manifest, scale.workers)
        publish(scale.names, out, data, manifest)
        wall = time.perf_counter() - started
        with threadpool_limits(1):
            costs = [
                cost_of(name, configuration, data, manifest, scale)
                for name in scale.names
                for configuration in EXPERIMENTS[name].configurations
                if not configuration.limit
            ]
        every = [unit for name in scale.names for unit in units.units_of(EXPERIMENTS[name])]
        computing = sum(recalled(unit, data, manifest, "seconds") for unit in every if not unit.trial)
    return costs, Whole(wall, computing, len(every))


def cost_of(name: str, configuration: Configuration, data: Path, manifest: Manifest, scale: Scale) -> Cost:
    """Return what a configuration cost, and what it would have."""
    experiment = EXPERIMENTS[name]
    trials = [units.Unit(name, configuration, trial) for trial in range(1, experiment.trials + 1)]
    drawing, whole = (
        sum(recalled(unit, data, manifest, field) for unit in trials) for field in ("drawing_seconds", "seconds")
    )
    grown = experiment.draws / experiment.draws_at(manifest.scale)
    timed, seconds = literal_seconds(configuration.layer, scale.seconds)
    draws = experiment.draws * experiment.trials
    return Cost(name, configuration.label, draws, timed, seconds * draws, drawing * grown, (whole - drawing) * grown)


def recalled(unit: units.Unit, data: Path, manifest: Manifest, field: str) -> float:
    """Return a time that a unit took."""
    return max(1e-9, float(units.recall(unit, data, manifest.seed, manifest.scale)[field]))


def literal_seconds(layer: ac.AttentionLayer, least: float) -> tuple[int, float]:
    """Return how many literal draws were timed, and the processor seconds of one of them."""
    ac.simulate(layer, 1, reading="direct")  # warms up
    size, taken = 1, clocked(lambda: ac.simulate(layer, 1, reading="direct"))
    while taken < least:
        # The first draws of a block cost more: no more than four times as many at once.
        size = min(4 * size, 1 + int(1.2 * size * least / taken))
        taken = clocked(functools.partial(ac.simulate, layer, size, reading="direct"))
    return size, taken / size


def clocked(run: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    started = time.process_time()
    run()
    # Some clocks tick so rarely that a short call takes no time at all.
    return max(time.process_time() - started, 1e-9)


def by_experiment(costs: Sequence[Cost]) -> list[tuple[str, ...]]:
    """Return a row for each experiment and one for all of them."""
    names = list(dict.fromkeys(cost.experiment for cost in costs))
    groups = {name: [cost for cost in costs if cost.experiment == name] for name in names}
    return [summed(name, group) for name, group in [*groups.items(), ("all", list(costs))]]


def summed(name: str, costs: Sequence[Cost]) -> tuple[str, ...]:
    """Return a row of sums."""
    literal, drawing, estimating = (
        float(np.sum([getattr(cost, field) for cost in costs])) for field in ("literal", "drawing", "estimating")
    )
    return name, f"{literal / 3600:,.1f} h", f"{drawing:,.1f} s", f"{literal / drawing:,.0f}×", f"{estimating:,.1f} s"


def row(cost: Cost) -> tuple[str, ...]:
    """Return a row for a configuration."""
    micro = 1e6 / cost.draws
    each = (f"{cost.literal * micro:,.0f} µs ({cost.timed:,})", f"{cost.drawing * micro:,.1f} µs")
    return cost.experiment, cost.label, f"{cost.draws:,}", *each, f"{cost.factor:,.0f}×"


def report(costs: Sequence[Cost], whole: Whole, scale: Scale) -> str:
    """Return the page that is printed and written."""
    literal = sum(cost.literal for cost in costs)
    total = (
        f"The whole command took {whole.wall:,.0f} s of wall time with {scale.workers} processes, for "
        f"{whole.units} units, figures and pages; {whole.computing:,.0f} s of processor time went into what is "
        f"computed. Literal matrices would take {literal / 3600:,.0f} h of processor time for the samples alone, "
        f"{literal / 3600 / scale.workers:,.0f} h with {scale.workers} processes: "
        f"{literal / scale.workers / whole.wall:,.0f} times as long as the whole command."
    )
    sums = table(
        ("experiment", "literal draws", "draws here", "factor", "limit and kernel densities"), by_experiment(costs)
    )
    each = table(("experiment", "configuration", "draws", "literal (timed)", "here", "factor"), map(row, costs))
    parts = ["# The paper's experiments", "`python benchmarks/paper.py --write` makes this page.", total, sums, each]
    parts.append(
        f"Processor times of one thread; the literal ones are extrapolated from the draws in brackets. {installed()}."
    )
    if scale is QUICK:
        parts.insert(2, "A quick run: it shows that everything runs; its times mean nothing.")
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Time the paper's experiments against literal matrices.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/paper.md too")
    parser.add_argument("--quick", action="store_true", help="run one experiment at a tiny scale")
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
