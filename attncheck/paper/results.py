"""Figures as numbers, gathered from the results of tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.paper import units
from attncheck.paper.experiments import EXPERIMENTS, ExactDistance, Experiment, ExperimentCase
from attncheck.paper.run import PaperRun
from attncheck.paper.units import Arrays, Task
from attncheck.theory.limit import limit
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.rates.law import Distance
from attncheck.theory.rates.rate import Rate, fit

# Interquartile range of the standard normal law.
_QUARTILES = 1.349


@dataclasses.dataclass(frozen=True)
class SampledLaw:
    """Statistics of a sampled law.

    ``variance``, ``excess_kurtosis`` and ``kl``, the paper's estimate of the divergence, have one value per trial.
    ``density`` and ``counts`` (of histogram bins) are those of the first trial.
    """

    case: ExperimentCase
    variance: list[float]
    excess_kurtosis: list[float]
    kl: list[float]
    density: FloatArray
    counts: IntArray

    @property
    def label(self) -> str:
        """Label of the case."""
        return self.case.label


@dataclasses.dataclass(frozen=True)
class Curve:
    """A computed density minus that of the limit.

    ``error`` has the half-widths of the error intervals of ``value``, which are infinite in far tails. ``moments`` are
    the variance and excess kurtosis, each followed by its error.
    """

    case: ExactDistance
    value: FloatArray
    error: FloatArray
    moments: FloatArray


@dataclasses.dataclass(frozen=True)
class Figure:
    """A published figure as numbers, and the run that made them."""

    experiment: Experiment
    run: PaperRun
    edges: FloatArray
    limits: dict[str, LimitLaw]
    sampled: dict[str, SampledLaw]
    curves: dict[str, Curve]
    points: dict[ExactDistance, Distance]
    fits: list[Rate]

    @property
    def kind(self) -> str:
        """Kind of the experiment."""
        return self.experiment.kind

    @property
    def draws(self) -> int:
        """Number of draws of one trial."""
        return self.experiment.draws_at(self.run.scale)

    @property
    def finite(self) -> list[SampledLaw]:
        """Sampled laws at finite width."""
        return [law for law in self.sampled.values() if not law.case.limit]

    def points_of(self, label: str) -> list[Distance]:
        """Return the divergences with this label at finite widths, sorted by width."""
        points = [point for case, point in self.points.items() if case.label == label and not case.infinite]
        return sorted(points, key=lambda point: point.width)

    def gap_of(self, label: str) -> Distance:
        """Return the divergence with this label at infinite width."""
        return next(point for case, point in self.points.items() if case.label == label and case.infinite)


def gather(name: str, results: Mapping[Task, Arrays], manifest: PaperRun) -> Figure:
    """Return the figure called `name`, from the results of its tasks."""
    experiment = EXPERIMENTS[name]
    merged = _merged_bins(experiment.draws_at(manifest.scale))
    points = {case: results[Task(name, case)]["distance"] for case in experiment.exact if case.of == "outputs"}
    return Figure(
        experiment=experiment,
        run=manifest,
        edges=units.edges()[::merged],
        limits={case.label: limit(case.layer) for case in _limits(experiment)},
        sampled={case.label: _sampled(case, experiment, results, merged) for case in experiment.configurations},
        curves={case.curve: _curve(case, results[Task(name, case)]) for case in experiment.exact if case.curve},
        points=points,
        fits=[fit("kl", list(points.values()))] if experiment.kind == "width" else [],
    )


def _merged_bins(draws: int) -> int:
    """Return the number of histogram bins that are merged into one bar.

    It is the largest divisor of the number of bins for which bars are not wider than the Freedman–Diaconis rule gives
    for a standard normal law, and at least 1.
    """
    bins = len(units.edges()) - 1
    width = 2.0 * _QUARTILES * draws ** (-1 / 3) / float(np.diff(units.edges())[0])
    return max(factor for factor in range(1, bins + 1) if bins % factor == 0 and factor <= max(1.0, width))


def _limits(experiment: Experiment) -> list[ExperimentCase]:
    """Return one case per limit law of the experiment."""
    chosen = [case for case in experiment.configurations if case.limit]
    return chosen or [case for case in experiment.configurations if case.of == "outputs"]


def _sampled(case: ExperimentCase, experiment: Experiment, results: Mapping[Task, Arrays], merged: int) -> SampledLaw:
    trials = [results[Task(experiment.name, case, trial)] for trial in range(1, experiment.trials + 1)]
    _, variance, kurtosis = np.array([trial["moments"] for trial in trials]).T.tolist()
    return SampledLaw(
        case=case,
        variance=variance,
        excess_kurtosis=kurtosis,
        kl=[float(trial["kl"]) for trial in trials if "kl" in trial],
        density=trials[0]["density"],
        counts=trials[0]["counts"].reshape(-1, merged).sum(axis=1),
    )


def _curve(case: ExactDistance, arrays: Arrays) -> Curve:
    return Curve(case, arrays["difference"], arrays["difference_error"], arrays["moments"])
