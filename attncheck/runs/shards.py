"""Shards: parts of a run for separate machines, determined by the plan alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from attncheck._lib.errors import refuse

_REMEDY = "pass e.g. 2/8, the second of eight"
# Largest accepted number of shards; a larger one is a mistake.
_MOST = 10_000


@dataclasses.dataclass(frozen=True)
class Shard:
    """One of `of` parts of a run, numbered from 1."""

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> Shard:
        """Parse a shard; raises InputError if that fails.

        Examples
        --------
        >>> Shard.read("2/8")
        Shard(number=2, of=8)
        """
        if not re.fullmatch("[0-9]{1,5}/[0-9]{1,5}", text):
            refuse("shard", text, "is not of the form number/shards", _REMEDY)
        number, of = map(int, text.split("/"))
        if not 1 <= of <= _MOST:
            refuse("shard", text, f"must have 1 to {_MOST:,} shards", _REMEDY)
        if not 1 <= number <= of:
            refuse("shard", text, f"is not one of 1/{of} to {of}/{of}", _REMEDY)
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class Dealer:
    """Distributes tasks among shards: the most expensive first, each to the shard with the lowest load.

    Assignments are kept, so that later properties of a case go to the shard that has its draws.

    Examples
    --------
    >>> dealer = Dealer(2)
    >>> dealer.deal({"a": 1.0, "b": 3.0, "c": 1.0}), dealer.deal({"d": 2.0})
    ({'a': Shard(number=2, of=2), 'b': Shard(number=1, of=2), 'c': Shard(number=2, of=2)}, {'d': Shard(number=2, of=2)})
    """

    def __init__(self, of: int) -> None:
        self._loads = [0.0] * of
        self._places: dict[str, int] = {}

    def deal(self, costs: Mapping[str, float]) -> dict[str, Shard]:
        """Return the shard of each task, by key."""
        for key in sorted(costs, key=lambda key: (-costs[key], key)):
            if key not in self._places:
                self._places[key] = self._loads.index(min(self._loads))
                self._loads[self._places[key]] += costs[key]
        return {key: Shard(self._places[key] + 1, len(self._loads)) for key in costs}
