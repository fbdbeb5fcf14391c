"""Runs of the paper's tasks, in parallel."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from attncheck._lib.errors import InputError, check_choice, check_integer, check_number
from attncheck._lib.workers import InProcess, LostTask, Workers
from attncheck.paper import units
from attncheck.paper.experiments import EXPERIMENTS
from attncheck.paper.units import Arrays, Task
from attncheck.records.manifest import installed_versions

#: Packages whose versions affect the numbers.
_VERSIONED = ("attncheck", "numpy", "scipy")
#: All figures, in the paper's order.
NAMES = tuple(EXPERIMENTS)
#: Scale at which every experiment has its minimum number of draws.
LEAST_SCALE = 1e-3


@dataclasses.dataclass(frozen=True)
class PaperRun:
    """Seed, scale and versions of a run."""

    seed: int
    scale: float
    versions: dict[str, str]


def names_of(figures: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the wanted figures, in the paper's order.

    Examples
    --------
    >>> names_of("all"), names_of(["fig3", "fig1"])
    (('fig1', 'fig2', 'fig3', 'fig5'), ('fig1', 'fig3'))
    """
    chosen = [figures] if isinstance(figures, str) else list(figures)
    for name in chosen:
        check_choice("figure", name, (*NAMES, "all"))
    return tuple(name for name in NAMES if "all" in chosen or name in chosen)


def manifest_of(seed: int, scale: float) -> PaperRun:
    """Return the validated seed and scale of a run, with the versions of installed packages."""
    seed = check_integer("seed", seed, 0, "pass a whole number, e.g. 0")
    remedy = "pass the share of the published draws, e.g. 0.01"
    scale = check_number("scale", scale, remedy, minimum=LEAST_SCALE, maximum=1.0)
    versions = {name: version for name, version in installed_versions().items() if name in _VERSIONED}
    return PaperRun(seed, scale, versions)


def perform_all(
    names: Sequence[str],
    manifest: PaperRun,
    workers: Workers | None = None,
    on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Mapping[Task, Arrays]:
    """Perform the tasks of figures, the expensive computations first, and return their numbers.

    By default, this process does the work.
    `on_progress` is called with the number of finished tasks, the number of all tasks, and the last finished task.
    """
    tasks = sorted((task for name in names for task in units.tasks_of(name)), key=lambda task: task.trial)
    perform = functools.partial(units.perform, seed=manifest.seed, scale=manifest.scale)
    running = workers or InProcess()
    results: dict[Task, Arrays] = {}
    for index, arrays in running.gather(perform, tasks):
        task = tasks[index]
        if isinstance(arrays, LostTask):
            remedy = "repeat the command, with fewer workers if memory was short"
            raise InputError(f"workers={running.name}: {task.subject.label}: {arrays.reason}; {remedy}")
        results[task] = arrays
        on_progress(len(results), len(tasks), f"{task.experiment}, {task.subject.label}")
    return results
