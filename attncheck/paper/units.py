"""Tasks of the experiments, each with a separate random stream."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import seed_sequence, set_fields
from attncheck.methods import simulate_chunks
from attncheck.paper import exact, kde
from attncheck.paper.experiments import (
    BIN_END,
    BINS,
    EXPERIMENTS,
    GRID_END,
    GRID_POINTS,
    ExactDistance,
    ExperimentCase,
)

Arrays = dict[str, NDArray[Any]]

# Draws in memory at once: those of 256 heads take 33 MB.
_CHUNK = 1_000


def grid() -> FloatArray:
    """Return the points at which densities are evaluated."""
    return np.linspace(-GRID_END, GRID_END, GRID_POINTS)


def edges() -> FloatArray:
    """Return the edges of histogram bins."""
    return np.linspace(-BIN_END, BIN_END, BINS + 1)


#: The subject of a task, sampled or computed.
Subject = ExperimentCase | ExactDistance


@dataclasses.dataclass(frozen=True)
class Task:
    """One trial of a case, with ``trial`` from 1, or a computation, with ``trial`` 0."""

    experiment: str
    subject: Subject
    trial: int = 0

    @property
    def cost(self) -> float:
        """Approximate cost, as a number of normals to draw; the most expensive tasks start first."""
        layer = self.subject.layer
        if isinstance(self.subject, ExactDistance):
            return 1e12 * layer.width * layer.num_heads
        inputs = 0 if self.subject.limit else layer.seq_len * layer.width
        return EXPERIMENTS[self.experiment].draws * (inputs + 8.0 * layer.num_heads * layer.seq_len)


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
    """Return a task's numbers at a share `scale` of the draws, with one BLAS thread."""
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
        "density": kde.density(samples, grid()),
    }
    if EXPERIMENTS[unit.experiment].kind != "histogram":
        arrays["kl"] = np.array(kde.divergence(samples, drawn(limit=True, role="limit")))
    return arrays


def _draw(configuration: ExperimentCase, size: int, limit: bool, seed: np.random.SeedSequence) -> FloatArray:
    """Draw the first neuron's output at the first position, or a score p_11, (size,)."""
    layer = configuration.layer.replace(seq_len=1) if configuration.of == "scores" else configuration.layer
    chunks = simulate_chunks(layer, size, _CHUNK, seed, "limit" if limit else "collapsed")
    if configuration.of == "scores":
        return np.concatenate([chunk.scores[:, 0, 0, 0] for chunk in chunks])
    return np.concatenate([chunk.outputs[:, 0, 0].copy() for chunk in chunks])
