"""Process pools that end quietly on Ctrl-C, and when the process that made them ends."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.text import printable

# Maximum size in bytes of the stored output of a process, and number of characters shown of its last line.
_OUTPUT, _LINE = 2**20, 200
# Number of bytes at the end of the stored output that are kept when it is shortened.
_END = 2**16
# Suffixes of the files with the output of a process, and with the reports of faulthandler on it.
_PRINTED, _FAULTS = ".out", ".faults"
# Signals that end a run, whose record then stays readable.
_ENDING = (signal.SIGINT, signal.SIGTERM)
# Seconds between checks of the output, and between checks of the status of a process that ends.
_ASKED, _BRIEFLY = 1.0, 0.01
# Seconds that foreign code in this process may go on after Ctrl-C.
_SWALLOWED = 5.0
# Output of faulthandler: the fault, and the stacks of threads; the failing or the main one comes last.
_FAULT = re.compile(r"^(Fatal Python error: [^\n]+|Timeout [^\n]+)$", re.MULTILINE)
_STACK = re.compile(r"most recent call first\):\n((?: +File .+\n?)+)", re.MULTILINE)
_FRAME = re.compile(r'^ +File "(.+)", line (\d+) in', re.MULTILINE)


class LastWords(NamedTuple):
    """One line on the end of a process; `hung` says whether it was ended because its time was up."""

    text: str = ""
    hung: bool = False


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
        pool.outputs.cleanup()


def lost_a_process(executor: Executor) -> bool:
    """Return whether a process of a pool has died, or was stopped by a signal."""
    processes = list((executor._processes or {}).values()) if isinstance(executor, _Pool) else []
    return bool(wait([process.sentinel for process in processes], timeout=0)) or any(map(_stopped, processes))


def _stopped(process: BaseProcess) -> bool:
    """Return whether a signal has stopped a process; False on systems that do not report this."""
    if process.pid is None or not hasattr(os, "waitid"):
        return False
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def end_pool(executor: Executor) -> None:
    """Kill the processes of a pool; its unfinished tasks fail with `BrokenExecutor`."""
    if isinstance(executor, _Pool):
        executor.end()


def last_words(executor: Executor) -> LastWords:
    """Return the last output of a pool's processes, and the fault or exit status of one that died, if known."""
    if not isinstance(executor, _Pool):
        return LastWords()
    faults = _newest(executor, _FAULTS)
    found = _FAULT.search(faults)
    fault = _fault(found, faults) if found else _status(executor)
    said = printable(printed(executor).rpartition("\n")[2], _LINE)
    text = "; ".join(each for each in (said, printable(fault, _LINE)) if each)
    return LastWords(text, hung=found is not None and found[0].startswith("Timeout"))


def printed(executor: Executor) -> str:
    """Return the end of the output of that process of a pool that printed last."""
    return _newest(executor, _PRINTED) if isinstance(executor, _Pool) else ""


def _newest(executor: _Pool, ending: str) -> str:
    """Return the end of the newest file with this ending that is not blank, stripped of whitespace."""
    paths = sorted(Path(executor.outputs.name).glob(f"*{ending}"), key=lambda path: path.stat().st_mtime)
    return next((each for each in map(_end_of, reversed(paths)) if each), "")


def _end_of(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _OUTPUT))
        return file.read(_OUTPUT).decode(errors="replace").strip()


def _fault(fault: re.Match[str], text: str) -> str:
    """Return a fault that faulthandler reported, with the innermost call outside Python's standard library."""
    *_, calls = ["", *_STACK.findall(text[fault.end() :].partition("Current thread")[2] or text[fault.end() :])]
    frames = _FRAME.findall(calls)
    own = [frame for frame in frames if not frame[0].startswith(sysconfig.get_path("stdlib"))]
    return fault[0] + "".join(f" at {path}:{line}" for path, line in (own or frames)[:1])


def _status(executor: _Pool) -> str:
    """Return the exit status of a process that was not ended by the pool; empty if there is none."""
    processes = list(executor.started.values())
    # The pool's own thread reaps processes too, so the status may be unknown for a moment.
    until = time.monotonic() + _ASKED
    while any(process.exitcode is None for process in processes) and time.monotonic() < until:
        time.sleep(_BRIEFLY)
    codes = [process.exitcode for process in processes]
    # The pool itself terminates the other processes.
    code = next((each for each in codes if each not in (None, 0, -signal.SIGTERM)), None)
    if code is None:
        return ""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


class _Pool(ProcessPoolExecutor):
    """Pool that starts its processes on `submit`, with Ctrl-C deferred until they are ready.

    Their output goes to files in the folder `outputs`.
    """

    def __init__(self, workers: int) -> None:
        self.outputs = TemporaryDirectory(ignore_cleanup_errors=True)
        # Spawn: a fork of a threaded process may hang.
        context, prepared = get_context("spawn"), (self.outputs.name,)
        super().__init__(workers, mp_context=context, initializer=_prepare, initargs=prepared)
        # Kept here, because the base class drops them on shutdown.
        self.started = self._processes
        self._results: Any = self._result_queue

    def submit(self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs) -> Future[_Result]:
        with interrupts_held():
            return super().submit(fn, *args, **kwargs)

    def end(self) -> None:
        """Kill the processes and wait for the thread that manages them."""
        manager: Any = self._executor_manager_thread
        self.shutdown(wait=False, cancel_futures=True)
        for process in list(self.started.values()):
            process.kill()
            if process.pid is not None and hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just begun, or has ended
                    os.killpg(process.pid, signal.SIGKILL)
        if manager is not None:
            # A process killed while it wrote a result leaves the manager waiting for the rest of it, for as long as
            # anybody, even this process, could still write.
            self._results._writer.close()
            manager.join()


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


def admit_interrupts() -> None:
    """Deliver the signals that were deferred while this process started."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _prepare(outputs: str) -> None:
    """Set up a worker: one thread, output to a file, no traceback on Ctrl-C, and an end with its parent.

    Output to the terminal would garble the progress bar.
    """
    # Both stay open for the lifetime of the worker.
    output, faults = (
        open(Path(outputs, f"{os.getpid()}{ending}"), "a+", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115
        for ending in (_PRINTED, _FAULTS)
    )
    sys.stdout = sys.stderr = output
    sys.__stderr__ = faults  # type: ignore[misc]  # for Python's own reports, which the subject's output must not mimic
    for descriptor in (1, 2):  # also redirects libraries and child processes
        os.dup2(output.fileno(), descriptor)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a group with its own children, which end with it
    faulthandler.enable(faults)
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, args=(output.fileno(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    admit_interrupts()


def _end_with_parent(output: int) -> None:
    """End this process when its parent ends; until then, keep its output short."""
    parent = parent_process()
    assert parent is not None
    while parent.is_alive():
        parent.join(_ASKED)
        with contextlib.suppress(OSError):  # the subject closed it
            if os.fstat(output).st_size > _OUTPUT:
                end = os.pread(output, _END, os.fstat(output).st_size - _END) if hasattr(os, "pread") else b""
                os.ftruncate(output, 0)
                os.write(output, end)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
