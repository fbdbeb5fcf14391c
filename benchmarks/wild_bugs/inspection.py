"""Inspect one fixture, and return the result as a serialisable row."""

from __future__ import annotations

import importlib
import importlib.util
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.wild_bugs.bug import Bug, Right, line_told, next_seed
from benchmarks.wild_bugs.variants import KINDS, Mutant, Variant

# Typed loosely, as the report's API is newer than this script.
ac: Any = importlib.import_module("attncheck")


class BugRow(msgspec.Struct, frozen=True):
    """Inspection result of one bug.

    Attributes
    ----------
    name, source : str
    where : str
        First method to find it: "text", "require" or "compare"; empty if none.
    told : str
        The matching line, or the output instead.
    seconds : float
    seed : int
    """

    name: str
    source: str
    where: str
    told: str
    seconds: float
    seed: int = 0


class RightRow(msgspec.Struct, frozen=True):
    """Inspection result of one right layer.

    Attributes
    ----------
    name : str
    seed : int
    blames : tuple of str
        Notes that report an error.
    refused : str
        Message of `require`, of a failed inspection, or what the text misstates; empty if all is well.
    seconds : float
    """

    name: str
    seed: int
    blames: tuple[str, ...]
    refused: str
    seconds: float


class VariantRow(msgspec.Struct, frozen=True):
    """Inspection result of one random right module.

    Attributes
    ----------
    name : str
    seed : int
    wrong : tuple of str
        Lines that begin with `wrong`.
    failed : str
        Message of a failed inspection.
    seconds : float
    """

    name: str
    seed: int
    wrong: tuple[str, ...]
    failed: str
    seconds: float


class MutantRow(msgspec.Struct, frozen=True):
    """Inspection result of one mutant.

    Attributes
    ----------
    name, kind : str
    seed : int
    first : str
        First line of the report, or the message of a failed inspection.
    named_first, named : bool
        Whether the first line, or any line, names the mutation.
    seconds : float
    """

    name: str
    kind: str
    seed: int
    first: str
    named_first: bool
    named: bool
    seconds: float


Row = BugRow | RightRow | VariantRow | MutantRow


def settle(seed: int) -> None:
    """Reseed all generators that modules use."""
    next_seed.restart(seed)
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch").manual_seed(seed)


def failure(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def attempt(said: Callable[[], object]) -> tuple[str, str]:
    """Return a call's text or assertion message, and any other error in one line."""
    try:
        return str(said()), ""
    except AssertionError as error:
        return str(error), ""
    except Exception as error:
        return "", failure(error)


def on_bug(bug: Bug, draws: int, seed: int = 0) -> BugRow:
    """Inspect a bug, check its declaration, and compare it if the fixture requests it."""
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
        says["compare"] = lambda: compared(bug)
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
    return BugRow(bug.name, bug.source, where, told, time.perf_counter() - started, seed)


def compared(bug: Bug) -> str:
    """Return the formulas of a bug and of the module to compare with."""
    formulas = [ac.inspect(make, width=bug.width).forward for make in (bug.make, bug.other)]
    return f"{formulas[0]} against {formulas[1]}"


def blames_of(report: Any) -> tuple[str, ...]:
    """Return the notes that report an error, or that do not say whether they do."""
    return tuple(str(note) for note in getattr(report, "notes", ()) if getattr(note, "level", "wrong") == "wrong")


def on_right(layer: Right, draws: int, seed: int) -> RightRow:
    """Inspect a right layer, and check its true properties."""
    settle(seed)
    started = time.perf_counter()
    blames: tuple[str, ...] = ()
    try:
        report = ac.inspect(layer.make, width=layer.width, call=layer.call, draws=draws, seed=seed)
        blames = blames_of(report)
        report.require(**layer.declared)
        refused = layer.misstated(str(report))
    except Exception as error:
        refused = failure(error)
    return RightRow(layer.name, seed, blames, refused, time.perf_counter() - started)


def lines_of(make: Variant | Mutant, call: Any, draws: int) -> list[str]:
    """Return the report's lines that are not empty."""
    settle(0)
    report = ac.inspect(make.make, width=make.width, call=call, draws=draws, seed=0)
    return [line.strip() for line in str(report).splitlines() if line.strip()]


def on_variant(variant: Variant, draws: int, seed: int) -> VariantRow:
    """Inspect a right module of the generator's seed."""
    started = time.perf_counter()
    wrong, failed = tuple[str, ...](), ""
    try:
        wrong = tuple(line for line in lines_of(variant, variant.call, draws) if line.startswith("wrong"))
    except Exception as error:
        failed = failure(error)
    return VariantRow(variant.name, seed, wrong, failed, time.perf_counter() - started)


def on_mutant(mutant: Mutant, draws: int, seed: int) -> MutantRow:
    """Inspect a mutant; a failed inspection names nothing."""
    started = time.perf_counter()
    try:
        lines = lines_of(mutant, None, draws) or [""]
        named = [re.search(KINDS[mutant.kind], line) is not None for line in lines]
        first = lines[0]
    except Exception as error:
        named, first = [False], f"not inspected: {failure(error)}"
    return MutantRow(mutant.name, mutant.kind, seed, first, named[0], any(named), time.perf_counter() - started)
