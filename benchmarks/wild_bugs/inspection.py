"""One inspection of one fixture: what it says, as a row that can be kept."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from benchmarks.wild_bugs.bug import Bug, Right, line_told, next_seed

# What it offers is older than what is asked of it here, so that no type is known.
ac: Any = importlib.import_module("attncheck")

#: In the order of the columns.
ROLES = ("query", "key", "value", "output")
_ABSENT = "–"
# An unknown attribute of the report is shown as absent: the row says so, and the others are still written.
_MISSING = (AttributeError, KeyError, IndexError, TypeError)


class BugRow(msgspec.Struct, frozen=True, tag="bug"):
    """What an inspection said of one bug.

    Attributes
    ----------
    name, source, environment : str
    where : str
        Who told it: "text", "require" or "compare"; empty where nobody did.
    told : str
        The very line that told it, or what there is in its place.
    seconds : float
    seed : int
    """

    name: str
    source: str
    environment: str
    where: str
    told: str
    seconds: float
    seed: int = 0


class RightRow(msgspec.Struct, frozen=True, tag="right"):
    """What an inspection said against one right layer.

    Attributes
    ----------
    name : str
    seed : int
    blames : tuple of str
        Notes that say that something is wrong.
    refused : str
        What `require` said, or the error that came in place of an inspection; empty where all is well.
    seconds : float
    """

    name: str
    seed: int
    blames: tuple[str, ...]
    refused: str
    seconds: float


class ZooRow(msgspec.Struct, frozen=True, tag="zoo"):
    """What an inspection measured on one layer, in the words of the table."""

    name: str
    cells: tuple[str, ...]
    seconds: float
    seed: int = 0


Row = BugRow | RightRow | ZooRow


def settle(seed: int) -> None:
    """Let everything that modules draw from start over."""
    next_seed.restart(seed)
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").manual_seed(seed)


def failure(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def attempt(said: Callable[[], object]) -> tuple[str, str]:
    """Return what something says, or asserts against us, and in one line the error of another kind that it ended in."""
    try:
        return str(said()), ""
    except AssertionError as error:
        return str(error), ""
    except Exception as error:
        return "", failure(error)


def on_bug(bug: Bug, draws: int, seed: int = 0) -> BugRow:
    """Inspect a bug, hold it to what its author says, and compare it where the fixture asks for that."""
    settle(seed)
    started = time.perf_counter()
    found: list[Any] = []

    def text() -> object:
        found.append(ac.inspect(bug.make, width=bug.width, call=bug.call, draws=draws, seed=seed))
        return found[0]

    def require() -> object:
        return found[0].require(**bug.declared)

    says: dict[str, Callable[[], object]] = {"text": text}
    if bug.declared:
        says["require"] = require
    if bug.other is not None:
        says["compare"] = lambda: ac.compare(bug.make, bug.other, width=bug.width)
    where, told, errors = "", "", []
    for name, said in says.items():
        if name == "require" and not found:
            continue
        words, error = attempt(said)
        line = line_told(words, bug.sentence)
        if line is not None and not where:
            where, told = name, line
        if error:
            errors.append(f"{name} ended in {error}")
    if not where:
        told = "; ".join(errors) or "; ".join(blames_of(found[0])) or "nothing of it"
    return BugRow(bug.name, bug.source, bug.environment, where, told, time.perf_counter() - started, seed)


def blames_of(report: Any) -> tuple[str, ...]:
    """Return the notes that say that something is wrong. A note that does not tell whether it blames counts as one."""
    return tuple(str(note) for note in getattr(report, "notes", ()) if getattr(note, "blames", True))


def on_right(layer: Right, draws: int, seed: int) -> RightRow:
    """Inspect a right layer, and hold it to what is true of it."""
    settle(seed)
    started = time.perf_counter()
    blames: tuple[str, ...] = ()
    try:
        report = ac.inspect(layer.make, width=layer.width, call=layer.call, draws=draws, seed=seed)
        blames = blames_of(report)
        report.require(**layer.declared)
        refused = ""
    except Exception as error:
        refused = failure(error)
    return RightRow(layer.name, seed, blames, refused, time.perf_counter() - started)


#: The numbers of a report that the zoo shows, with the form of each.
SHOWN = {
    "temperature": ("theory.temperature", ".3g"),
    "score variance": ("theory.score_variance", ".3g"),
    "entropy": ("theory.entropy", ".3g"),
    "excess kurtosis": ("theory.excess_kurtosis", ".3g"),
    "mask": ("forward.mask", ""),
    "scale": ("forward.scale", ".3g"),
    "map": ("forward.map", ""),
    "error": ("forward.error", ".1e"),
}
ZOO_HEADER = ("layer", "law", *(f"W_{role[0].upper()}" for role in ROLES), *SHOWN, "s")


def on_zoo(layer: Right, draws: int, seed: int = 0) -> ZooRow:
    """Measure one layer."""
    settle(seed)
    started = time.perf_counter()
    try:
        report = ac.inspect(layer.make, width=layer.width, call=layer.call, draws=draws, seed=seed)
        laws = dict.fromkeys(law for law in (value_of(report, role, "law") for role in ROLES) if law is not None)
        sizes = [size_of(report, role) for role in ROLES]
        cells = (", ".join(map(str, laws)) or _ABSENT, *sizes, *(shown(report, *how) for how in SHOWN.values()))
    except Exception as error:
        cells = (f"not inspected: {failure(error)}", *[_ABSENT] * (len(ROLES) + len(SHOWN)))
    return ZooRow(layer.name, cells, time.perf_counter() - started, seed)


def value_of(report: Any, role: str, name: str) -> Any:
    """Return a value of one matrix, or None."""
    try:
        return getattr(report.weights[role], name)
    except _MISSING:
        return None


def size_of(report: Any, role: str) -> str:
    """Return the standard deviation of a matrix times √fan-in, with its interval."""
    std, low, high = (value_of(report, role, name) for name in ("std", "low", "high"))
    if std is None:
        return _ABSENT
    return f"{std:.3f}" if low is None or high is None else f"{std:.3f} [{low:.3f}, {high:.3f}]"


def shown(report: Any, path: str, form: str) -> str:
    """Return a value of a report in words."""
    try:
        value = report
        for name in path.split("."):
            value = getattr(value, name)
        return _ABSENT if value is None else format(value, form if isinstance(value, float | np.floating) else "")
    except _MISSING:
        return _ABSENT
