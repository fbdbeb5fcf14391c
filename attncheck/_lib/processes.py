"""Processes that share work, and end without a word where somebody presses Ctrl-C."""

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
    """Hand out a pool of fresh processes, which have one BLAS thread each.

    Ctrl-C on a terminal ends them. Otherwise what is in progress at the end is finished; nothing more is begun.

    Parameters
    ----------
    workers : int
        Processes.
    """
    pool = _Pool(workers)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Begins its processes, which is when work is handed in, so that Ctrl-C waits until they are ready for it."""

    def __init__(self, workers: int) -> None:
        # Fresh processes: a fork of one that runs threads may hang.
        super().__init__(workers, mp_context=get_context("spawn"), initializer=_prepare)

    def submit(self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs) -> Future[_Result]:
        with interrupts_held():
            return super().submit(fn, *args, **kwargs)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back: here until the end, in processes that are begun meanwhile until they admit it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    pressed: list[int] = []
    # A mask is one thread's, and what processes begun by it inherit; another thread may take the signal in.
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
    """Let Ctrl-C come that was held back while this process began."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _prepare() -> None:
    """Set up a process of the pool: one thread, an end without a traceback, and no word of what it is called for.

    A simulator that prints would print for each of its draws, into the bar of the process that reports.
    """
    sys.stdout = sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    threadpool_limits(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    admit_interrupts()
