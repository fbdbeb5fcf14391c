"""The bar that long commands show on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Return a progress bar on standard error, silent unless that is a terminal.

    pytest captures the streams of this process while it examines, so the bar has a copy of its own.
    """
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as stream:
        console = Console(file=stream)
        columns: tuple[Any, ...] = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            yield progress
