"""Peak memory of calls."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def with_peak(call: Callable[[], Result]) -> tuple[Result, int]:
    """Return what a call returns, and the most bytes that Python held meanwhile."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
