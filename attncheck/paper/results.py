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
        return next(each for each in self.sampled if each.label == label)

    def curve_of(self, label: str) -> Curve:
        """Return a computed curve by label."""
        return next(each for each in self.curves if each.label == label)

    def points_of(self, label: str) -> list[Point]:
        """Return a series' divergences at finite widths, ascending."""
        found = [each for each in self.points if each.label == label and each.width is not None]
        return sorted(found, key=lambda each: each.width or 0)

    def gap_of(self, label: str) -> Point | None:
        """Return a series' divergence at infinite width, if any."""
        return next((each for each in self.points if each.label == label and each.width is None), None)

    def limit_of(self, label: str) -> LimitDensity:
        """Return a limit density by label."""
        return next(each for each in self.limits if each.label == label)

    def floor(self, label: str) -> FloatArray:
        """Return the published estimates for the limit against itself."""
        return np.array(self.sampled_as(label).kl)


def gather(name: str, found: Mapping[Task, Arrays], manifest: PaperRun) -> Figure:
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
        limits=[_limit(each) for each in _limits(experiment)],
        sampled=[_sampled(each, experiment, found, manifest.scale) for each in experiment.configurations],
        curves=[_curve(each, found[Task(name, each)]) for each in experiment.exact if each.curve],
        points=[_point(each, found[Task(name, each)]) for each in experiment.exact if each.of == "outputs"],
        fits=_fits(experiment, found),
    )


def _merged_bins(draws: int) -> int:
    """Return the number of bins per bar, from the Freedman–Diaconis width for a standard normal, rounded down."""
    bins = len(units.edges()) - 1
    width = 2.0 * _QUARTILES * draws ** (-1 / 3) / float(np.diff(units.edges())[0])
    return max(each for each in range(1, bins + 1) if bins % each == 0 and each <= max(1.0, width))


def _limits(experiment: Experiment) -> list[ExperimentCase]:
    """Return one case per limit law of the experiment."""
    chosen = [each for each in experiment.configurations if each.limit]
    return chosen or [each for each in experiment.configurations if each.of == "outputs"]


def _limit(configuration: ExperimentCase) -> LimitDensity:
    law = limit(configuration.layer)
    density = np.asarray(law.pdf(units.grid())).tolist()
    return LimitDensity(configuration.label, density, law.variance(), law.excess_kurtosis())


def _sampled(
    configuration: ExperimentCase, experiment: Experiment, found: Mapping[Task, Arrays], scale: float
) -> SampledLaw:
    trials = [found[Task(experiment.name, configuration, trial)] for trial in range(1, experiment.trials + 1)]
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


def _curve(wanted: ExactDistance, arrays: Arrays) -> Curve:
    value, errors, moments = (arrays[name].tolist() for name in ("difference", "difference_error", "moments"))
    told = [error if math.isfinite(error) else None for error in errors]
    return Curve(wanted.curve, wanted.layer.to_dict(), wanted.of, value, told, moments)


def _point(wanted: ExactDistance, arrays: Arrays) -> Point:
    width = None if wanted.infinite else wanted.layer.width
    value, error = float(arrays["value"]), float(arrays["error"])
    return Point(wanted.label, wanted.layer.to_dict(), wanted.of, width, value, error)


def _fits(experiment: Experiment, found: Mapping[Task, Arrays]) -> list[Fit]:
    """Return the fitted order in 1/n of each series of divergences that goes to 0."""
    if experiment.kind != "width":
        return []
    series: dict[str, list[Arrays]] = {}
    for each in experiment.exact:
        if each.of == "outputs":
            series.setdefault(each.label, []).append(found[Task(experiment.name, each)])
    return [fit_order(label, arrays) for label, arrays in series.items()]
