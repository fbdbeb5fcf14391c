"""Runs of the paper's tasks: compute in parallel the results that a folder lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from attncheck._lib.errors import InputError, check_choice, check_number, check_whole, refuse
from attncheck._lib.executors import ExecutorSpec, LostTask, TaskExecutor, here
from attncheck._lib.files import write_whole
from attncheck.paper import units
from attncheck.paper.experiments import EXPERIMENTS
from attncheck.paper.units import Task
from attncheck.records.manifest import installed_versions

#: Packages whose versions affect the numbers and the bytes of files.
_VERSIONED = ("attncheck", "numpy", "scipy")
_MANIFEST = "run.json"
#: All figures, in the paper's order.
NAMES = tuple(EXPERIMENTS)
#: Scale at which every experiment has its minimum number of draws.
LEAST_SCALE = 1e-3


class PaperRun(msgspec.Struct, frozen=True):
    """Seed, scale and versions, shared by all numbers in a folder."""

    format: int
    seed: int
    scale: float
    versions: dict[str, str]


def names_of(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the wanted figures, in the paper's order.

    Examples
    --------
    >>> names_of("all"), names_of(["fig3", "fig1"])
    (('fig1', 'fig2', 'fig3', 'fig5'), ('fig1', 'fig3'))
    """
    chosen = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in chosen:
        check_choice("figure", name, (*NAMES, "all"))
    return tuple(name for name in NAMES if "all" in chosen or name in chosen)


def manifest_of(seed: int, scale: float) -> PaperRun:
    """Return the manifest of a run with the installed versions."""
    seed = check_whole("seed", seed, 0, "pass a whole number, e.g. 0")
    remedy = "pass the share of the published draws, e.g. 0.01"
    scale = check_number("scale", scale, remedy, minimum=LEAST_SCALE, maximum=1.0)
    versions = {name: version for name, version in installed_versions().items() if name in _VERSIONED}
    return PaperRun(units.FORMAT, seed, scale, versions)


def settle_all(
    names: Sequence[str],
    out: Path,
    manifest: PaperRun,
    spec: ExecutorSpec | None = None,
    told: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Path:
    """Perform the tasks that the folder lacks; return the folder of task files.

    `told` is called with the number of finished tasks, the number of all tasks, and the last finished task.
    """
    data = _claimed(Path(out), manifest)
    wanted = [unit for name in names for unit in units.units_of(name)]
    left = sorted(units.pending(wanted, data, manifest.seed, manifest.scale), key=lambda unit: -unit.cost)
    done = len(wanted) - len(left)
    told(done, len(wanted), "kept from before" if done else "starting")
    for unit in _performed(left, data, manifest, spec or here()):
        done += 1
        told(done, len(wanted), f"{unit.experiment}, {unit.subject.label}")
    return data


def _performed(left: Sequence[Task], data: Path, manifest: PaperRun, spec: ExecutorSpec) -> Iterator[Task]:
    """Perform tasks and write their files."""
    perform = functools.partial(units.perform, seed=manifest.seed, scale=manifest.scale)
    with TaskExecutor(spec) as executor:
        for place, arrays in executor.gather(perform, left):
            if isinstance(arrays, LostTask):
                remedy = "repeat the command, with fewer workers if memory was short: finished tasks are kept"
                raise InputError(f"executor={spec.name}: {left[place].subject.label}: {arrays.reason}; {remedy}")
            units.keep(left[place], arrays, data, manifest.seed, manifest.scale)
            yield left[place]


def _claimed(out: Path, manifest: PaperRun) -> Path:
    """Return the folder of a run's task files, created if missing; reject the folder of another run."""
    data, path = out / "data", out / "data" / _MANIFEST
    try:
        there: bytes | None = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        there = None
    except OSError as error:
        raise InputError(f"out={out}: cannot be read ({error.strerror or error}); choose another folder") from None
    if there is not None:
        _refuse_other(out, there, manifest)
    else:
        write_whole(path, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return data


def _refuse_other(out: Path, there: bytes, manifest: PaperRun) -> None:
    remedy = "choose another --out, or delete its folder data"
    try:
        before = msgspec.json.decode(there, type=PaperRun)
    except msgspec.DecodeError as error:
        raise InputError(f"out={out}: data/{_MANIFEST} cannot be read ({error}); {remedy}") from None
    for field in ("seed", "scale", "versions", "format"):
        was, now = getattr(before, field), getattr(manifest, field)
        if was != now:
            refuse("out", str(out), f"holds a run with {field} {_brief(was)}, not {_brief(now)}", remedy)


def _brief(value: object) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else f"{value}"
