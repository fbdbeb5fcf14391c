"""Tasks with separate random streams and files, so that runs can be interrupted and resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck._lib.files import write_whole
from attncheck._lib.streams import digest, given_fields, seed_sequence
from attncheck.paper import draw, exact, kde
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
#: Version of the numbers, increased when those of any task change.
FORMAT = 4


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

    def key(self, scale: float) -> dict[str, Any]:
        """Return everything that determines the task's numbers besides the seed, as built-in types."""
        return {
            "format": FORMAT,
            "experiment": self.experiment,
            **_key_of(self.subject),
            "trial": self.trial,
            "scale": scale,
        }

    def path(self, folder: Path) -> Path:
        """Return the path of the task's file."""
        name = digest([self.experiment, _key_of(self.subject)])
        return folder / f"{self.experiment}-{name}-{self.trial:02d}.npz"

    @property
    def cost(self) -> float:
        """Approximate cost, as a number of normals to draw; the most expensive tasks start first."""
        layer = self.subject.layer
        if isinstance(self.subject, ExactDistance):
            return 1e12 * layer.width * layer.num_heads
        inputs = 0 if self.subject.limit else layer.seq_len * layer.width
        return EXPERIMENTS[self.experiment].draws * (inputs + 8.0 * layer.num_heads * layer.seq_len)


def _key_of(subject: Subject) -> dict[str, Any]:
    return {**given_fields(subject), "layer": subject.layer.key}


def units_of(name: str) -> list[Task]:
    """Return the tasks of a figure."""
    experiment = EXPERIMENTS[name]
    sampled = [
        Task(experiment.name, configuration, trial)
        for configuration in experiment.configurations
        for trial in range(1, experiment.trials + 1)
    ]
    return [*(Task(experiment.name, each) for each in experiment.exact), *sampled]


@own_arithmetic()
def perform(unit: Task, seed: int, scale: float) -> Arrays:
    """Return a task's numbers and processor seconds at a share `scale` of the draws, with one BLAS thread."""
    started = time.process_time()
    if isinstance(unit.subject, ExactDistance):
        arrays = exact.compute(unit.subject, grid(), seed, scale)
    else:
        arrays = _sampled(unit, unit.subject, seed, EXPERIMENTS[unit.experiment].draws_at(scale))
    return {**arrays, "seconds": np.array(time.process_time() - started)}


def _sampled(unit: Task, configuration: ExperimentCase, seed: int, draws: int) -> Arrays:
    layer, key = configuration.layer, [unit.experiment, _key_of(configuration), unit.trial]

    def drawn(*, limit: bool, role: str) -> FloatArray:
        rng = draw.generator(seed_sequence(seed, "paper", *key, role=role))
        if limit:
            return draw.draw_limit(layer, draws, rng)
        return draw.DRAWN[configuration.of](layer, draws, rng)

    samples = drawn(limit=configuration.limit, role="draws")
    centred = samples - samples.mean()
    variance = float((centred**2).mean())
    arrays: Arrays = {
        "digest": np.array(hashlib.sha256(samples.astype("<f8").tobytes()).hexdigest()),
        "moments": np.array([samples.mean(), variance, float((centred**4).mean()) / variance**2 - 3.0]),
        "counts": np.histogram(samples, edges())[0],
        "density": kde.density(samples, grid()),
    }
    if EXPERIMENTS[unit.experiment].kind != "histogram":
        arrays["kl"] = np.array(kde.divergence(samples, drawn(limit=True, role="limit")))
    return arrays


# Files --------------------------------------------------------------------------------------------


def save(path: Path, arrays: Mapping[str, NDArray[Any]], key: Mapping[str, Any] | None = None) -> Path:
    """Write arrays atomically, with the `key` that `load` compares; return the path."""
    named: Arrays = {**arrays, **({} if key is None else {"key": np.array(_text(key))})}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **named)
    return write_whole(path, buffer.getvalue())


def load(path: Path, key: Mapping[str, Any]) -> Arrays | None:
    """Return the arrays of a file, or None if missing, damaged or of another key."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: Arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return None
    if str(arrays.pop("key", "")) != _text(key) or "seconds" not in arrays:
        return None
    return arrays


def pending(units: Iterable[Task], folder: Path, seed: int, scale: float) -> Iterator[Task]:
    """Iterate over the tasks without a readable file."""
    return (unit for unit in units if load(unit.path(folder), _keyed(unit, seed, scale)) is None)


def keep(unit: Task, arrays: Mapping[str, NDArray[Any]], folder: Path, seed: int, scale: float) -> Path:
    """Write the file of a finished task; return its path."""
    return save(unit.path(folder), arrays, _keyed(unit, seed, scale))


def recall(unit: Task, folder: Path, seed: int, scale: float) -> Arrays:
    """Return the arrays of a finished task; raise `InputError` if missing or damaged."""
    path = unit.path(folder)
    arrays = load(path, _keyed(unit, seed, scale))
    if arrays is None:
        raise InputError(f"data={path}: is missing or damaged; run attncheck paper again with the same --out")
    return arrays


def _keyed(unit: Task, seed: int, scale: float) -> dict[str, Any]:
    return {"seed": seed, **unit.key(scale)}


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
