"""Reproducible arithmetic: one BLAS thread and NumPy's default error handling."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits


class _OneThread:
    """Limits BLAS to one thread for overlapping contexts; the last one to exit restores the caller's limit."""

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
    """Use one BLAS thread (workers share the cores) and NumPy's default floating-point error handling.

    The caller's settings are restored on exit.

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
    """Return the BLAS libraries, their kernels for this processor, and NumPy's SIMD extensions.

    The last digits of sums, and eigenvectors of singular matrices, depend on these.
    """
    import scipy.linalg  # noqa: F401  # threadpoolctl lists only loaded libraries

    pools = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    blas = sorted(
        {f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip() for pool in pools}
    )
    described: Any = np.show_config(mode="dicts")
    extensions = described.get("SIMD Extensions", {}).get("found", [])
    return ", ".join([*(blas or ["unknown BLAS"]), " ".join(["SIMD", *extensions]) if extensions else "no SIMD"])
