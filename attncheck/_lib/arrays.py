"""Types of arrays, and their division into parts that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
IndexArray = NDArray[np.intp]


def slices(count: int, step: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `step` rows that cover `count` rows; a `step` below 1 counts as 1.

    Examples
    --------
    >>> list(slices(5, 3))
    [slice(0, 3, None), slice(3, 6, None)]
    """
    step = max(1, step)
    yield from (slice(start, start + step) for start in range(0, count, step))
