"""Whole numbers as they come from the command line: as texts, so that 1.5 is refused and not cut."""

from __future__ import annotations

import os

from attncheck.errors import check_whole


def seed_of(text: str) -> int:
    """Return the seed of a run.

    Raises
    ------
    InputError
        If it is no whole number of at least 0.

    Examples
    --------
    >>> seed_of("7")
    7
    """
    return check_whole("seed", _number(text), 0, "pass a whole number")


def processes_of(text: str) -> int:
    """Return a number of processes; "auto" is one for each core.

    Raises
    ------
    InputError
        If it is neither "auto" nor a whole number of at least 1.

    Examples
    --------
    >>> processes_of("2")
    2
    """
    processes = os.cpu_count() or 1 if text == "auto" else _number(text)
    return check_whole("workers", processes, 1, "pass a number of processes, or auto")


def _number(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text
