"""Process pools that end quietly on Ctrl-C, and with the process that made them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


@contextlib.contextmanager
def pool_of(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh processes with one BLAS thread each, which are killed on exit."""
    pool = _Pool(workers)
    try:
        yield pool
    finally:
        pool.end()


def lost_a_process(executor: Executor) -> bool:
    """Return whether a process of a pool has died."""
    processes = executor._processes if isinstance(executor, _Pool) else {}
    return bool(wait([process.sentinel for process in list((processes or {}).values())], timeout=0))


def end_pool(executor: Executor) -> None:
    """Kill the processes of a pool; its unfinished tasks fail with `BrokenExecutor`."""
    if isinstance(executor, _Pool):
        executor.end()


class _Pool(ProcessPoolExecutor):
    """Pool that starts its processes on `submit`, with Ctrl-C deferred until they are ready."""

    def __init__(self, workers: int) -> None:
        # Spawn: a fork of a threaded process may hang.
        super().__init__(workers, mp_context=get_context("spawn"), initializer=_prepare)
        # The base class forgets its parts when it is shut down.
        self._started = self._processes
        self._results: Any = self._result_queue

    def submit(self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs) -> Future[_Result]:
        with interrupts_held():
            return super().submit(fn, *args, **kwargs)

    def end(self) -> None:
        """Kill the processes and wait for the thread that manages them."""
        manager: Any = self._executor_manager_thread
        self.shutdown(wait=False, cancel_futures=True)
        for process in list(self._started.values()):
            process.kill()
        if manager is not None:
            # A process killed while it wrote a result leaves the manager waiting for the rest of it, for as long as
            # anybody, even this process, could still write.
            self._results._writer.close()
            manager.join()


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
    """Set up a worker: one thread, no output, no traceback on Ctrl-C, and no life beyond its parent's.

    Output would garble the progress bar.
    """
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open as long as the worker
    for descriptor in (1, 2):  # of libraries and child processes
        os.dup2(sys.stdout.fileno(), descriptor)
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    admit_interrupts()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
