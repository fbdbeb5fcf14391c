"""What the pages of measurements share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Processes that measure at a time; pages of times use one.
WORKERS = 2


def over(function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int) -> Iterator[_Result]:
    """Yield results in order of the items, from processes of one thread each, or from this one if `workers` is 0."""
    if workers == 0:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_one_thread) as pool:
        yield from pool.map(function, items)


def _one_thread() -> None:
    threadpool_limits(1)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def children_seconds() -> float:
    """Return the processor seconds of all finished child processes."""
    times = os.times()
    return times.children_user + times.children_system
