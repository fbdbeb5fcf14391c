"""Ctrl-C, and requests to terminate."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from attncheck._lib.exit_codes import ExitCode

# Signals that end a run, whose record then stays readable.
_ENDING = (signal.SIGINT, signal.SIGTERM)
# Seconds that foreign code in this process may go on after Ctrl-C.
_SWALLOWED = 5.0


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
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
    handlers = {each: signal.signal(each, lambda number, frame: sent.append(number)) for each in _ENDING if main}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for number in dict.fromkeys(sent):
            signal.raise_signal(number)


def admit_interrupts() -> None:
    """Deliver the signals that were deferred while this process started."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@contextlib.contextmanager
def interrupts_obeyed() -> Iterator[None]:
    """End this process if foreign code in the context swallows Ctrl-C, or a request to terminate."""
    main = threading.current_thread() is threading.main_thread()
    raising = [each for each in _ENDING if main and signal.getsignal(each) is signal.default_int_handler]
    timers: list[threading.Timer] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(_SWALLOWED, _end_interrupted)
        timer.daemon = True
        timer.start()
        timers.append(timer)
        signal.default_int_handler(number, frame)

    for each in raising:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for each in raising:
            signal.signal(each, signal.default_int_handler)


def _end_interrupted() -> None:
    print("attncheck: interrupted, which the subject ignored", file=sys.__stderr__, flush=True)
    os._exit(ExitCode.INTERRUPTED)
