"""Progress bar on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_Item = TypeVar("_Item")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a progress bar, which is hidden unless standard error is a terminal.

    The bar writes to a copy of standard error, which pytest does not capture.
    """
    try:
        copy = os.dup(2)
    except OSError:  # the process has no standard error
        copy = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(copy, "w", encoding="utf-8", errors="replace") as stream:
        console = Console(file=stream)
        columns: tuple[Any, ...] = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            yield progress


def counted_off(items: Sequence[_Item], label: str) -> Iterator[_Item]:
    """Iterate over items with a progress bar labelled `label`.

    Examples
    --------
    >>> list(counted_off((64, 128), "widths"))
    [64, 128]
    """
    with progress_bar() as progress:
        yield from progress.track(items, description=label)
