"""The measurements of a check in one look, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attncheck.checks.check import AnyCheck
from attncheck.evidence.family import CondensedData, Outcome

#: Largest number of values kept uncondensed; first looks of the default profile have half as many.
MOST_HELD = 2**17


class CheckData:
    """Data of one check in one look, condensed once there are many."""

    def __init__(self, check: AnyCheck, setting: Any) -> None:
        self._check, self._setting = check, setting
        self._parts: list[tuple[Any, ...]] = []
        self._size = 0
        self._condensed: CondensedData | None = None

    def add(self, part: tuple[Any, ...]) -> None:
        """Add the measurements of one chunk."""
        self._parts.append(part)
        self._size += sum(np.size(column) for column in part)
        several = len(self._parts) > 1 or self._condensed is not None
        if several and self._size > MOST_HELD:
            self._condense()

    def outcome(self) -> Outcome:
        """Return the outcome of the test on all data."""
        if self._condensed is None:
            return self._check.test(self._setting, join(self._parts))
        if self._parts:
            self._condense()
        return self._condensed.outcome()

    def _condense(self) -> None:
        """Replace the data by their condensed form."""
        data, last = join(self._parts), self._parts[-1]
        self._parts, self._size = [], 0
        if any(np.size(column) == 0 for column in data):
            # With an empty sample there is nothing to compare, however many data the other has.
            self._parts = [last]
        elif self._condensed is None:
            self._condensed = self._check.family(self._setting).condensed(*data)
        else:
            self._condensed.add(*data)


def join(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Join the measurements of several chunks: concatenate arrays, add counts."""
    if len(parts) == 1:
        return parts[0]
    return tuple(
        np.concatenate(column) if isinstance(column[0], np.ndarray) else sum(column)
        for column in zip(*parts, strict=True)
    )
