"""Memory limit of a computation, checked before allocation."""

from __future__ import annotations

from typing import Any

from attncheck._lib.errors import refuse

#: Largest size in bytes of a single draw or computed array.
DEFAULT_MEMORY = 512 * 2**20


def check_memory(field: str, value: Any, description: str, entries: int, remedy: str) -> None:
    """Raise `InputError` if an array of `entries` float64 numbers exceeds `DEFAULT_MEMORY`.

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
        refuse(field, value, f"makes {description} take {needed} bytes, more than {DEFAULT_MEMORY}", remedy)
