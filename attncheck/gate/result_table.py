"""What is compared of a run and of a baseline: a few numbers a result, so that a record of 10⁶ lines fits in memory."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck.evidence.verdicts import Verdict
from attncheck.records.baseline import BaselineManifest, BaselineResult, read_baseline
from attncheck.records.schema import Closing

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Numbers of a result that are compared.
COMPARED = ("effect", "low", "high", "null_effect", "mde", "size", "power")
_VERDICTS = [str(verdict) for verdict in Verdict]


class NameIndex:
    """Numbers for the names of checks and units, the same in a run and in its baseline."""

    def __init__(self) -> None:
        self._checks: dict[str, int] = {}
        self._items: dict[str, int] = {}

    def key(self, check: str, item: str) -> int:
        """Return the number that stands for a check on a unit of work."""
        first = self._checks.setdefault(check, len(self._checks))
        return first << 32 | self._items.setdefault(item, len(self._items))

    def pairs(self, keys: IntArray) -> Iterator[tuple[str, str]]:
        """Iterate over the checks and units that keys stand for."""
        checks, items = list(self._checks), list(self._items)
        for key in keys.tolist():
            yield checks[key >> 32], items[key & 0xFFFFFFFF]

    def items(self, keys: IntArray) -> set[str]:
        """Return the units that keys stand for."""
        return {item for _, item in self.pairs(keys)}

    def checks(self, keys: IntArray) -> set[str]:
        """Return the checks that keys stand for."""
        return {check for check, _ in self.pairs(keys)}


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """What is compared of results. Arrays over results are sorted by key.

    Attributes
    ----------
    path : Path
    head : BaselineManifest
    closing : Closing or None
        None if the run did not finish.
    names : NameIndex
        What the keys stand for.
    keys : ndarray
        Keys of the results.
    verdicts : ndarray
        Of each result, the place of its verdict in `Verdict`.
    numbers : dict of str to ndarray
        Of each result; NaN where it has none.
    pooled : dict of int to tuple of str
        The cases of each pool, by its key.
    """

    path: Path
    head: BaselineManifest
    closing: Closing | None
    names: NameIndex
    keys: IntArray
    verdicts: IntArray
    numbers: dict[str, FloatArray]
    pooled: dict[int, tuple[str, ...]]

    @property
    def examined(self) -> BoolArray:
        """Of each result, whether it was examined."""
        return ~self.having(Verdict.NOT_EXAMINED)

    @property
    def single(self) -> IntArray:
        """The keys of examined results on single cases."""
        return np.setdiff1d(self.keys[self.examined], np.fromiter(self.pooled, dtype=np.int64))

    def having(self, verdict: str) -> BoolArray:
        """Of each result, whether it has this verdict."""
        return np.equal(self.verdicts, _VERDICTS.index(verdict))

    def common(self, other: ResultTable) -> tuple[IntArray, IntArray]:
        """Return where in this and in the other book the results are that both have; pools, of the same cases."""
        keys, ours, theirs = np.intersect1d(self.keys, other.keys, return_indices=True)
        same = np.array([self.pooled.get(key) == other.pooled.get(key) for key in keys.tolist()], dtype=bool)
        return ours[same], theirs[same]


class ColumnBuffer:
    """Results as they are read, one number under another."""

    def __init__(self, names: NameIndex, numbers: tuple[str, ...]) -> None:
        self.names = names
        self.keys = array("q")
        self.verdicts = array("b")
        self.numbers = {name: array("d") for name in numbers}
        self.pooled: dict[int, tuple[str, ...]] = {}

    def add(self, line: Any, check: str, item: str, of: tuple[str, ...] = ()) -> None:
        """Take a line; numbers that it lacks are NaN."""
        self.keys.append(self.names.key(check, item))
        self.verdicts.append(_VERDICTS.index(line.verdict))
        for name, values in self.numbers.items():
            value = getattr(line, name, None)
            values.append(math.nan if value is None else value)
        if of:
            self.pooled[self.keys[-1]] = of

    def sorted(self) -> tuple[IntArray, dict[str, Any]]:
        """Return the order of the keys, and all columns in it; only once."""
        order = np.argsort(self.keys, kind="stable")
        # One by one, so that no more than one of them is there twice.
        numbers = {name: np.asarray(self.numbers.pop(name))[order] for name in list(self.numbers)}
        return order, {
            "names": self.names,
            "keys": np.asarray(self.keys, dtype=np.int64)[order],
            "verdicts": np.asarray(self.verdicts, dtype=np.int64)[order],
            "numbers": numbers,
            "pooled": self.pooled,
        }


def read_results(path: Path, names: NameIndex) -> ResultTable:
    """Read a baseline, or a whole record for one.

    Raises
    ------
    InputError
        If it cannot be read or was edited, or nothing in it was examined.
    """
    lines = read_baseline(path)
    head = next(lines)
    assert isinstance(head, BaselineManifest)
    columns, closing = ColumnBuffer(names, COMPARED), None
    for line in lines:
        if isinstance(line, BaselineResult):
            columns.add(line, line.check, line.item, line.of)
        else:
            assert isinstance(line, Closing)
            closing = line
    if not columns.keys:
        raise InputError(f"baseline={path}: has no examined result; make the baseline again")
    return ResultTable(path=path, head=head, closing=closing, **columns.sorted()[1])
