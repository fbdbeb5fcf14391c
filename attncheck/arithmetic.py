"""How attncheck computes where code that it did not write may have changed how numpy does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits


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


def in_use() -> str:
    """Return what rounds here: BLAS libraries with the kernels they chose for this processor, and numpy's SIMD.

    The last digits of a sum depend on them, and eigenvectors of singular matrices altogether, so that a run has other
    digits on another processor.
    """
    import scipy.linalg  # noqa: F401  # its library is listed once it is loaded

    pools = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    blas = sorted(
        {f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip() for pool in pools}
    )
    described: Any = np.show_config(mode="dicts")
    extensions = described.get("SIMD Extensions", {}).get("found", [])
    return ", ".join([*(blas or ["unknown BLAS"]), " ".join(["SIMD", *extensions]) if extensions else "no SIMD"])
