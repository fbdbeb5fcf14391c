"""How attncheck computes where code that it did not write may have changed how numpy does."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits


class _OneThread:
    """One BLAS thread for the whole process, from the first that asks for it until the last is done.

    BLAS libraries know one number of threads for all threads of a process. Each caller of `threadpool_limits` would
    put back what it found: of two that overlap, the second finds the first one's limit, and would leave it behind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limits: threadpool_limits | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._limits is None:
                self._limits = threadpool_limits(1)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._limits is not None:
                    self._limits.restore_original_limits()
                    self._limits = None


_ONE_THREAD = _OneThread()


@contextlib.contextmanager
def own_arithmetic() -> Iterator[None]:
    """One BLAS thread, as workers share the machine's cores, and numpy's defaults where a number is out of range.

    Whoever called ``np.seterr(all="raise")`` before finds it as it was, and so does whoever set a number of BLAS
    threads, in whichever thread of the process.

    Examples
    --------
    >>> with np.errstate(all="raise"), own_arithmetic():
    ...     float(np.float64(1e-300) * 1e-300)
    0.0
    """
    with _ONE_THREAD.held(), np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield


@functools.cache
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
