"""Tasks of the experiments, each with a separate random stream, and the published estimator of KL."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import stats

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import seed_sequence, set_fields
from attncheck.methods import simulate_chunks
from attncheck.paper import exact
from attncheck.paper.experiments import (
    BIN_END,
    BINS,
    EXPERIMENTS,
    GRID_END,
    GRID_POINTS,
    ExactDistance,
    ExperimentCase,
)

Arrays = dict[str, Any]

# Number of draws in memory at once; with 256 heads they take 33 MB.
_CHUNK = 1_000
# Grid points of the published estimator, and the constant added to densities.
_POINTS, _OFFSET = 500, 1e-12
#: The subject of a task, sampled or computed.
Subject = ExperimentCase | ExactDistance


def density(samples: FloatArray, grid: FloatArray) -> FloatArray:
    """Return the kernel density estimate on a grid, in the shape of the grid.

    Examples
    --------
    >>> density(np.array([-1.0, 1.0]), np.array([-1.0, 0.0, 1.0])).round(4)
    array([0.2053, 0.233 , 0.2053])
    """
    return np.asarray(stats.gaussian_kde(samples)(grid))


def divergence(first: FloatArray, second: FloatArray) -> float:
    """Return the published estimate of KL(first ‖ second).

    p log(p/q) is summed over 500 points, with 1e-12 added to both densities. Beyond the extremes of `second` the
    result depends on the 1e-12.

    Examples
    --------
    >>> a = np.random.default_rng(0).standard_normal(1000)
    >>> divergence(a, a)
    0.0
    """
    grid = np.linspace(min(first.min(), second.min()), max(first.max(), second.max()), _POINTS)
    p, q = density(first, grid) + _OFFSET, density(second, grid) + _OFFSET
    return float((p * np.log(p / q)).sum() * (grid[1] - grid[0]))


def grid() -> FloatArray:
    """Return the points at which densities are evaluated."""
    return np.linspace(-GRID_END, GRID_END, GRID_POINTS)


def edges() -> FloatArray:
    """Return the edges of histogram bins."""
    return np.linspace(-BIN_END, BIN_END, BINS + 1)


@dataclasses.dataclass(frozen=True)
class Task:
    """One trial of a sampled case, or the computation of a distance.

    Trials are numbered from 1; ``trial`` is 0 for a computation.
    """

    experiment: str
    subject: Subject
    trial: int = 0


def _key_of(subject: Subject) -> dict[str, Any]:
    return {**set_fields(subject), "layer": subject.layer.key}


def tasks_of(name: str) -> list[Task]:
    """Return the tasks of a figure."""
    experiment = EXPERIMENTS[name]
    sampled = [
        Task(experiment.name, configuration, trial)
        for configuration in experiment.configurations
        for trial in range(1, experiment.trials + 1)
    ]
    return [*(Task(experiment.name, target) for target in experiment.exact), *sampled]


@own_arithmetic()
def perform(unit: Task, seed: int, scale: float) -> Arrays:
    """Perform a task with `scale` times the published number of draws, on one BLAS thread, and return its arrays."""
    if isinstance(unit.subject, ExactDistance):
        return exact.compute(unit.subject, grid(), seed, scale)
    return _sampled(unit, unit.subject, seed, EXPERIMENTS[unit.experiment].draws_at(scale))


def _sampled(unit: Task, configuration: ExperimentCase, seed: int, draws: int) -> Arrays:
    key = [unit.experiment, _key_of(configuration), unit.trial]

    def drawn(*, limit: bool, role: str) -> FloatArray:
        return _draw(configuration, draws, limit, seed_sequence(seed, "paper", *key, role=role))

    samples = drawn(limit=configuration.limit, role="draws")
    centred = samples - samples.mean()
    variance = float((centred**2).mean())
    arrays: Arrays = {
        "moments": np.array([samples.mean(), variance, float((centred**4).mean()) / variance**2 - 3.0]),
        "counts": np.histogram(samples, edges())[0],
        "density": density(samples, grid()),
    }
    if EXPERIMENTS[unit.experiment].kind != "histogram":
        arrays["kl"] = np.array(divergence(samples, drawn(limit=True, role="limit")))
    return arrays


def _draw(configuration: ExperimentCase, size: int, limit: bool, seed: np.random.SeedSequence) -> FloatArray:
    """Draw the first neuron's output at the first position, or a score p_11, (size,).

    If `limit` is True, draw from the law at infinite width.
    """
    layer = configuration.layer.replace(seq_len=1) if configuration.of == "scores" else configuration.layer
    chunks = simulate_chunks(layer, size, _CHUNK, seed, "limit" if limit else "collapsed")
    if configuration.of == "scores":
        return np.concatenate([chunk.scores[:, 0, 0, 0] for chunk in chunks])
    return np.concatenate([chunk.outputs[:, 0, 0].copy() for chunk in chunks])
