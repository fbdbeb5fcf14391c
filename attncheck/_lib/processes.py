"""Process pools that exit quietly on Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


@contextlib.contextmanager
def pool_of(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh processes with one BLAS thread each; on exit, only tasks in progress finish."""
    pool = _Pool(workers)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Pool that starts its processes on `submit`, with Ctrl-C deferred until they are ready."""

    def __init__(self, workers: int) -> None:
        # Spawn: a fork of a threaded process may hang.
        super().__init__(workers, mp_context=get_context("spawn"), initializer=_prepare)

    def submit(self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs) -> Future[_Result]:
        with interrupts_held():
            return super().submit(fn, *args, **kwargs)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C until the context exits, and in processes started within it until they call `admit_interrupts`."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    pressed: list[int] = []
    # A signal mask covers one thread and the processes that it starts; another thread may still get the signal.
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number)) if main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if main:
            signal.signal(signal.SIGINT, handler)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def admit_interrupts() -> None:
    """Deliver a Ctrl-C that was deferred while this process started."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _prepare() -> None:
    """Set up a worker: no output, which would garble the progress bar, one thread, and no traceback on Ctrl-C."""
    sys.stdout = sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    threadpool_limits(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    admit_interrupts()
