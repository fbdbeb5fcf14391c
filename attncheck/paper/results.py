"""Figures as numbers, gathered from the results of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.paper import units
from attncheck.paper.exact import Fit, fit_order
from attncheck.paper.experiments import EXPERIMENTS, ExactDistance, Experiment, ExperimentCase
from attncheck.paper.run import PaperRun
from attncheck.paper.units import Arrays, Task
from attncheck.theory.limit import limit

# Interquartile range of a standard normal.
_QUARTILES = 1.349


class SampledLaw(msgspec.Struct, frozen=True):
    """Statistics of a sampled law, per trial.

    ``density`` and ``counts`` are those of the first trial. ``kl`` is the published estimate.
    """

    label: str
    layer: dict[str, Any]
    of: str
    limit: bool
    draws: int
    mean: list[float]
    variance: list[float]
    excess_kurtosis: list[float]
    kl: list[float]
    density: list[float]
    counts: list[int]


class Curve(msgspec.Struct, frozen=True):
    """A computed density minus that of the limit, with half-widths of error intervals, None in far tails.

    ``moments`` are the variance and excess kurtosis, each followed by its error.
    """

    label: str
    layer: dict[str, Any]
    of: str
    value: list[float]
    error: list[float | None]
    moments: list[float]


class Point(msgspec.Struct, frozen=True):
    """Computed KL(finite ‖ limit) at a width; ``width`` is None at infinite width."""

    label: str
    layer: dict[str, Any]
    of: str
    width: int | None
    value: float
    error: float


class LimitDensity(msgspec.Struct, frozen=True):
    """The density of an infinite-width law."""

    label: str
    density: list[float]
    variance: float
    excess_kurtosis: float


class Figure(msgspec.Struct, frozen=True):
    """A published figure as numbers, and how they were made."""

    name: str
    kind: str
    title: str
    seed: int
    scale: float
    versions: dict[str, str]
    draws: int
    published_draws: int
    trials: int
    grid: list[float]
    edges: list[float]
    limits: list[LimitDensity]
    sampled: list[SampledLaw]
    curves: list[Curve]
    points: list[Point]
    fits: list[Fit]

    def sampled_as(self, label: str) -> SampledLaw:
        """Return a sampled law by label."""
        return next(law for law in self.sampled if law.label == label)

    def curve_of(self, label: str) -> Curve:
        """Return a computed curve by label."""
        return next(curve for curve in self.curves if curve.label == label)

    def points_of(self, label: str) -> list[Point]:
        """Return a series' divergences at finite widths, ascending."""
        points = [point for point in self.points if point.label == label and point.width is not None]
        return sorted(points, key=lambda point: point.width or 0)

    def gap_of(self, label: str) -> Point | None:
        """Return a series' divergence at infinite width, if any."""
        return next((point for point in self.points if point.label == label and point.width is None), None)

    def limit_of(self, label: str) -> LimitDensity:
        """Return a limit density by label."""
        return next(density for density in self.limits if density.label == label)

    def floor(self, label: str) -> FloatArray:
        """Return the published estimates for the limit against itself."""
        return np.array(self.sampled_as(label).kl)


def gather(name: str, results: Mapping[Task, Arrays], manifest: PaperRun) -> Figure:
    """Return a figure from the results of its tasks."""
    experiment = EXPERIMENTS[name]
    return Figure(
        name=name,
        kind=experiment.kind,
        title=experiment.title,
        seed=manifest.seed,
        scale=manifest.scale,
        versions=manifest.versions,
        draws=experiment.draws_at(manifest.scale),
        published_draws=experiment.draws,
        trials=experiment.trials,
        grid=units.grid().tolist(),
        edges=units.edges()[:: _merged_bins(experiment.draws_at(manifest.scale))].tolist(),
        limits=[_limit(case) for case in _limits(experiment)],
        sampled=[_sampled(case, experiment, results, manifest.scale) for case in experiment.configurations],
        curves=[_curve(case, results[Task(name, case)]) for case in experiment.exact if case.curve],
        points=[_point(case, results[Task(name, case)]) for case in experiment.exact if case.of == "outputs"],
        fits=_fits(experiment, results),
    )


def _merged_bins(draws: int) -> int:
    """Return the number of bins per bar, from the Freedman–Diaconis width for a standard normal, rounded down."""
    bins = len(units.edges()) - 1
    width = 2.0 * _QUARTILES * draws ** (-1 / 3) / float(np.diff(units.edges())[0])
    return max(factor for factor in range(1, bins + 1) if bins % factor == 0 and factor <= max(1.0, width))


def _limits(experiment: Experiment) -> list[ExperimentCase]:
    """Return one case per limit law of the experiment."""
    chosen = [case for case in experiment.configurations if case.limit]
    return chosen or [case for case in experiment.configurations if case.of == "outputs"]


def _limit(configuration: ExperimentCase) -> LimitDensity:
    law = limit(configuration.layer)
    density = np.asarray(law.pdf(units.grid())).tolist()
    return LimitDensity(configuration.label, density, law.variance(), law.excess_kurtosis())


def _sampled(
    configuration: ExperimentCase, experiment: Experiment, results: Mapping[Task, Arrays], scale: float
) -> SampledLaw:
    trials = [results[Task(experiment.name, configuration, trial)] for trial in range(1, experiment.trials + 1)]
    mean, variance, kurtosis = np.array([trial["moments"] for trial in trials]).T.tolist()
    return SampledLaw(
        label=configuration.label,
        layer=configuration.layer.to_dict(),
        of=configuration.of,
        limit=configuration.limit,
        draws=experiment.draws_at(scale),
        mean=mean,
        variance=variance,
        excess_kurtosis=kurtosis,
        kl=[float(trial["kl"]) for trial in trials if "kl" in trial],
        density=trials[0]["density"].tolist(),
        counts=trials[0]["counts"].reshape(-1, _merged_bins(experiment.draws_at(scale))).sum(axis=1).tolist(),
    )


def _curve(target: ExactDistance, arrays: Arrays) -> Curve:
    value, errors, moments = (arrays[name].tolist() for name in ("difference", "difference_error", "moments"))
    finite_errors = [error if math.isfinite(error) else None for error in errors]
    return Curve(target.curve, target.layer.to_dict(), target.of, value, finite_errors, moments)


def _point(target: ExactDistance, arrays: Arrays) -> Point:
    width = None if target.infinite else target.layer.width
    value, error = float(arrays["value"]), float(arrays["error"])
    return Point(target.label, target.layer.to_dict(), target.of, width, value, error)


def _fits(experiment: Experiment, results: Mapping[Task, Arrays]) -> list[Fit]:
    """Return the fitted order in 1/n of each series of divergences that goes to 0."""
    if experiment.kind != "width":
        return []
    series: dict[str, list[Arrays]] = {}
    for target in experiment.exact:
        if target.of == "outputs":
            series.setdefault(target.label, []).append(results[Task(experiment.name, target)])
    return [fit_order(label, arrays) for label, arrays in series.items()]
