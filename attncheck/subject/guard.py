"""A guard around the code of a subject, which may hang or fork."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import parent_process
from types import FrameType
from typing import Any

import numpy as np

# Seconds that a call may take to end after its time limit, before its process is killed.
_GRACE = 5.0


class GuardError(BaseException):
    """Raised when foreign code exceeds its time limit; not an `Exception`, so that foreign code rarely catches it."""


@contextlib.contextmanager
def guarded(seconds: float = math.inf) -> Iterator[None]:
    """Run foreign code in this context, with a time limit.

    A child process forked by this code ends with the context. NumPy's error handling is restored on exit.

    Parameters
    ----------
    seconds : float
        Time limit; enforced in the main thread of a process, where the system has timers.

    Raises
    ------
    GuardError
        When the time is up. If code in a process of a pool does not stop then, the process is killed.

    Examples
    --------
    >>> with guarded(60.0):
    ...     abs(-1)
    1
    """
    with np.errstate(), _time_limit(seconds), _one_process():
        yield


def in_pool() -> bool:
    """Return whether this process is a worker in a pool of another process, and so may be killed."""
    return parent_process() is not None


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """End a child process that code in this context forked, when the child reaches the end of the context.

    Otherwise the child would continue with the same code as its parent.
    """
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(1)


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `GuardError` in the main thread after some seconds, unless an earlier alarm is set."""
    here = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    earlier, interval = signal.getitimer(signal.ITIMER_REAL) if here else (0.0, 0.0)
    if not here or math.isinf(seconds) or 0.0 < earlier < seconds:
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise GuardError(f"took more than {seconds:g} s for one call; make it faster, or pass a larger --timeout")

    started = time.monotonic()
    handler: Any = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    # Python runs the handler only after the current library call returns, which may never happen. In this case the
    # process is killed, if it is a worker of a pool.
    ends = in_pool()
    if ends and sys.__stderr__ is not None:
        # The report does not go to `sys.stderr`, because the subject may replace it.
        faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        if ends:
            faulthandler.cancel_dump_traceback_later()
        remaining = max(earlier - (time.monotonic() - started), 1e-3) if earlier else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, remaining, interval)
