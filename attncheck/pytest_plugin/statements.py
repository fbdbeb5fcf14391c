"""Statements of the theory as test items: their cases, and the numbers that they find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from attncheck.pytest_plugin import sharing

if TYPE_CHECKING:
    from attncheck.runs.shards import Shard


class Statement:
    """What a test of the theory is about, and the numbers that it found."""

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

    def shipped(self, call: pytest.CallInfo[None]) -> dict[str, Any] | None:
        """Return the statement for the record; None where the test could not say whether it holds."""
        failure = None if call.excinfo is None else call.excinfo.value
        if failure is not None and not isinstance(failure, AssertionError | pytest.fail.Exception):
            return None
        return {
            "type": "theory",
            "id": self.id,
            "key": self.id,
            "verdict": "consistent" if failure is None else "violated",
            "numbers": self.numbers,
            "case": self.case,
            "reason": next(iter(str(failure).splitlines()), "an assertion failed") if failure else "",
            "seconds": call.duration if self.seconds is None else self.seconds,
        }


def parametrize(metafunc: pytest.Metafunc, key: str, cases: Sequence[Mapping[str, Any]], shard: Shard | None) -> None:
    """Make one item per case, whose id names the statement and the case."""
    from attncheck._lib.streams import digest

    ids = [f"{key}@{digest({name: getattr(value, 'key', value) for name, value in case.items()})}" for case in cases]
    words = [", ".join(_worded(name, value) for name, value in case.items()) for case in cases]
    given = [(id, told, [*case.values(), (id, told)]) for id, told, case in zip(ids, words, cases, strict=True)]
    # What a statement costs is not known beforehand.
    found = sharing.rows(metafunc.config, shard, "theory", dict.fromkeys(ids, 1.0), given)
    metafunc.parametrize([*cases[0], "note"] if cases else ["note"], found, indirect=["note"])


def _worded(name: str, value: Any) -> str:
    return str(value.describe()) if hasattr(value, "describe") else f"{name}={value}"
