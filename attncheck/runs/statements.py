"""Statements of the theory: their cases, and the numbers that a test of one finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attncheck._lib.arithmetic import in_use
from attncheck._lib.streams import digest
from attncheck.records.schema import Theory
from attncheck.runs.run import Run

# What a test takes its case by.
_ARGUMENTS = ("layer", "case", "stack")


class Statement:
    """What a test of the theory is about, and the numbers that it found: the test calls it.

    Parameters
    ----------
    id : str
        ``group.statement@digest of the case``.
    case : str
        In words.
    """

    def __init__(self, id: str, case: str) -> None:
        self.id, self.case = id, case
        self.numbers: dict[str, float] = {}
        self.seconds: float | None = None  # those of an earlier run

    def __call__(self, **numbers: float) -> None:
        """Take numbers that were found, by name."""
        found = {name: float(value) for name, value in numbers.items()}
        unusable = [f"{name} is {value}" for name, value in found.items() if not math.isfinite(value)]
        assert not unusable, ", ".join(unusable)  # a record holds finite numbers only
        self.numbers |= found

    def told(self, failure: str | None, seconds: float) -> Theory:
        """Return the line of the record.

        Parameters
        ----------
        failure : str or None
            What the test says where the statement does not hold; None where it does.
        seconds : float
            That the test took.
        """
        return Theory(
            id=self.id,
            key=self.id,
            verdict="consistent" if failure is None else "violated",
            numbers=self.numbers,
            case=self.case,
            reason="" if failure is None else next(iter(failure.splitlines()), "an assertion failed"),
            seconds=seconds if self.seconds is None else self.seconds,
            arithmetic=in_use(),
        )


def cases_of(
    run: Run, key: str, strategy: Any, parameters: Mapping[str, Sequence[Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the cases of a statement, each the arguments of its test.

    Parameters
    ----------
    run : Run
    key, strategy, parameters
        As for `attncheck.pytest_plugin.theory`.
    names : sequence of str
        The arguments of the test.
    """
    if strategy is None:
        return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]
    argument = argument_of(names)
    return [{argument: each} for each in run.drawn(strategy, key)]


def argument_of(names: Sequence[str]) -> str:
    """Return the argument by which a test takes its layer, program or stack; empty if it takes none."""
    return next((name for name in _ARGUMENTS if name in names), "")


def named(key: str, cases: Sequence[Mapping[str, Any]]) -> list[Statement]:
    """Return the statement of each case."""
    ids = [f"{key}@{digest({name: getattr(value, 'key', value) for name, value in case.items()})}" for case in cases]
    words = [", ".join(_worded(name, value) for name, value in case.items()) for case in cases]
    return [Statement(id, told) for id, told in zip(ids, words, strict=True)]


def _worded(name: str, value: Any) -> str:
    return str(value.describe()) if hasattr(value, "describe") else f"{name}={value}"
