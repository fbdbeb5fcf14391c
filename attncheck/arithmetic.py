"""How attncheck computes where code that it did not write may have changed how numpy does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits


@contextlib.contextmanager
def own_arithmetic() -> Iterator[None]:
    """One BLAS thread, as workers share the machine's cores, and numpy's defaults where a number is out of range.

    Whoever called ``np.seterr(all="raise")`` before finds it as it was.

    Examples
    --------
    >>> with np.errstate(all="raise"), own_arithmetic():
    ...     float(np.float64(1e-300) * 1e-300)
    0.0
    """
    with threadpool_limits(1), np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield
