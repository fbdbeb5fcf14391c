"""Ctrl-C, and requests to terminate."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

# Signals that end a run; the record of the run stays readable.
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C and requests to terminate until the context exits.

    Processes started in the context also defer these signals until they call `admit_interrupts`; otherwise, a signal
    during the start would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    sent: list[int] = []
    # A signal mask covers one thread and the processes that it starts; other threads may still receive the signal.
    main = threading.current_thread() is threading.main_thread()
    handlers = {signum: signal.signal(signum, lambda number, frame: sent.append(number)) for signum in _ENDING if main}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for number in dict.fromkeys(sent):
            signal.raise_signal(number)


def admit_interrupts() -> None:
    """Deliver the signals that were deferred while this process started."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
