"""A guard around the code of a subject, which may hang, fork, or modify packages that attncheck uses."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import operator
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

# Modules whose functions attncheck calls by name.
_USED = ("numpy", "numpy.linalg", "numpy.random", "scipy.linalg", "scipy.special", "scipy.stats")
# Seconds that an interrupted call may take to end before its process is ended.
_GRACE = 5.0
_OWN, _ABSENT = "attncheck", object()


class GuardError(BaseException):
    """Foreign code did something forbidden; not an `Exception`, so that this code cannot catch it by accident."""


@contextlib.contextmanager
def guarded(seconds: float = math.inf) -> Iterator[None]:
    """Run foreign code within the context.

    A child process forked by this code ends with the context. NumPy's error handling, and the functions of NumPy and
    SciPy, are restored on exit.

    Parameters
    ----------
    seconds : float
        Time limit; enforced in the main thread of a process, where the system has timers.

    Raises
    ------
    GuardError
        When the time is up, or if functions of NumPy or SciPy were replaced. If code in a process of a pool does not
        stop then, the process is killed.

    Examples
    --------
    >>> with guarded(60.0):
    ...     abs(-1)
    1
    """
    with _functions_kept(), np.errstate(), _time_limit(seconds), _one_process():
        yield


def in_pool() -> bool:
    """Return whether this process is a worker in a pool of another process, and so may be killed."""
    return parent_process() is not None


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """End a process forked within the context before it repeats the work of its parent."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(1)


@contextlib.contextmanager
def _functions_kept() -> Iterator[None]:
    """Restore functions of NumPy and SciPy, and `sys.modules`; raises `GuardError` if any was replaced."""
    modules = sys.modules
    loaded = dict(modules)
    before = {name: dict(vars(loaded[name])) for name in _USED if name in loaded}
    try:
        yield
    finally:
        changed = []
        for name, attributes in before.items():
            if replaced := _replaced(attributes, vars(loaded[name])):
                changed += [f"{name}.{attribute}" for attribute in replaced]
                vars(loaded[name]).update(attributes)
        if sys.modules is not modules or any(modules.get(name) is not loaded[name] for name in (*before, _OWN)):
            changed.append("sys.modules")
            sys.modules = modules
            modules.update(loaded)
        if changed:
            more = " and others" if changed[1:] else ""
            raise GuardError(f"changed {changed[0]}{more}, which attncheck uses too; leave other packages as they are")


def _replaced(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names whose values have been replaced by other objects."""
    # Written for speed, because there are thousands of attributes and of calls.
    if len(before) == len(now) and all(map(operator.is_, before.values(), now.values())) and [*before] == [*now]:
        return []
    return [name for name, value in before.items() if now.get(name, _ABSENT) is not value]


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
    # The handler runs only after a library returns, perhaps never; then only a process of a pool may be killed.
    ends = in_pool()
    if ends:
        # Not to `sys.stderr`, which the subject may replace.
        faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        if ends:
            faulthandler.cancel_dump_traceback_later()
        left = max(earlier - (time.monotonic() - started), 1e-3) if earlier else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)
