"""What a computation may take of memory, checked before anything is allocated."""

from __future__ import annotations

from typing import Any

from attncheck._lib.errors import refuse

#: Bytes that a single draw, or one array of what is computed, may take.
DEFAULT_MEMORY = 512 * 2**20


def check_memory(field: str, value: Any, what: str, entries: int, remedy: str) -> None:
    """Refuse a value that makes something of more float64 entries than `DEFAULT_MEMORY` holds.

    Parameters
    ----------
    field : str
    value : Any
        What was given.
    what : str
        What takes the memory.
    entries : int
    remedy : str

    Raises
    ------
    InputError

    Examples
    --------
    >>> check_memory("width", 10**9, "a draw of the inputs", 8 * 10**9, "pass a smaller width")
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: width=1000000000: makes a draw of the inputs take 64000000000 bytes, more than \
536870912; pass a smaller width
    """
    needed = 8 * entries
    if needed > DEFAULT_MEMORY:
        refuse(field, value, f"makes {what} take {needed} bytes, more than {DEFAULT_MEMORY}", remedy)
