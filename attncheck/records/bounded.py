"""Keeping the largest of very many items."""

from __future__ import annotations

import heapq
from typing import Any, Generic, Protocol, TypeVar


class Comparable(Protocol):
    """What can be compared with its like."""

    def __lt__(self, other: Any, /) -> bool:
        """Return whether this comes before `other`."""


_T = TypeVar("_T", bound=Comparable)


class LargestItems(Generic[_T]):
    """Holds the largest items of those it was shown, whatever their order.

    Examples
    --------
    >>> largest = LargestItems(2)
    >>> for number in (3, 9, 1, 7):
    ...     largest.add(number)
    >>> largest.items
    [9, 7]
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._heap: list[_T] = []

    def add(self, item: _T) -> None:
        """Take an item, and drop the smallest if there are too many."""
        (heapq.heappush if len(self._heap) < self.most else heapq.heappushpop)(self._heap, item)

    @property
    def items(self) -> list[_T]:
        """The largest items, the largest first."""
        return sorted(self._heap, reverse=True)
