"""Worker processes, each with a separate pipe to this process, so that a worker that dies loses only its own task."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import os
import re
import signal
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from threadpoolctl import threadpool_limits

from attncheck._lib.signals import admit_interrupts, interrupts_deferred
from attncheck._lib.text import printable
from attncheck._lib.workers import LostTask, Workers

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

# Maximum size in bytes of the stored output of a process, and number of characters shown of its last line.
_OUTPUT, _LINE = 2**20, 200
# Number of bytes at the end of the stored output that are kept when it is shortened.
_END = 2**16
# Suffix of the file with the output of a process, and of the file with faulthandler's reports about the process.
_PRINTED, _FAULTS = ".out", ".faults"
# Seconds between checks of the output file's size, and between checks for processes that a signal has stopped.
_POLL_SECONDS = 1.0
# Option of prctl(2) that sets the signal which this process receives when its parent ends.
_PARENT_DEATH = 1
# Exit statuses of a process that another process has ended.
_KILLED = (-signal.SIGTERM, -getattr(signal, "SIGKILL", signal.SIGTERM))
# Patterns of faulthandler's output: the fault, then the stack of each thread, and the frames of a stack. Without a
# "Current thread", the last stack is that of the main thread.
_FAULT = re.compile(r"^(Fatal Python error: [^\n]+|Timeout [^\n]+)$", re.MULTILINE)
_STACK = re.compile(r"most recent call first\):\n((?: +File .+\n?)+)", re.MULTILINE)
_FRAME = re.compile(r'^ +File "(.+)", line (\d+) in', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection

    def end(self) -> None:
        """Kill the process and its children."""
        self.process.kill()
        if self.process.pid is not None and hasattr(os, "killpg"):
            # The process may have ended, or may not have created its process group yet.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()


class Processes(Workers):
    """Runs tasks in new processes with one BLAS thread each; a process is started when a task needs one."""

    def __init__(self, number: int) -> None:
        self.name = f"{number} processes"
        self._number = number
        self._idle: list[_Worker] = []

    def __enter__(self) -> Self:
        self._outputs = TemporaryDirectory(ignore_cleanup_errors=True)
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._idle:
            worker.end()
        self._outputs.cleanup()

    def gather(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[int, _Result | LostTask]]:
        """Yield results as they complete."""
        waiting, busy = deque(enumerate(tasks)), dict[Any, tuple[_Worker, int]]()
        try:
            while waiting or busy:
                while waiting and len(busy) < self._number:
                    worker = self._free()
                    index, task = waiting.popleft()
                    busy[worker.pipe] = worker, index
                    with contextlib.suppress(OSError):  # the process has ended, which its pipe reports below
                        worker.pipe.send((function, task))
                ready: list[Any] = wait(list(busy), timeout=_POLL_SECONDS)
                for pipe, (worker, _) in busy.items():
                    if _stopped(worker.process):
                        worker.process.kill()
                    # The child of a worker that died may keep the pipe open, which is then never ready for reading.
                    if pipe not in ready and not worker.process.is_alive():
                        ready.append(pipe)
                for pipe in ready:
                    worker, index = busy.pop(pipe)
                    yield index, self._answer(worker)
        finally:
            for worker, _ in busy.values():
                worker.end()

    def _free(self) -> _Worker:
        """Return an idle process, or start a new one if there is none."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.is_alive():
                return worker
            worker.end()
        context = get_context("spawn")  # a fork of a threaded process may hang
        ours, theirs = context.Pipe()
        # The start of the resource tracker delivers deferred signals, so it must come before `interrupts_deferred`.
        resource_tracker.ensure_running()
        process = context.Process(target=_serve, args=(theirs, self._outputs.name))
        with interrupts_deferred():
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _answer(self, worker: _Worker) -> Any:
        answered = worker.pipe.poll()
        try:
            if not answered:  # the process has died
                raise EOFError
            error, result = worker.pipe.recv()
        except Exception:  # the process died before or while it answered, or wrote other data to the pipe
            worker.process.join(_POLL_SECONDS)
            worker.end()
            return self._lost(worker.process)
        self._idle.append(worker)
        if error is not None:
            raise error
        return result

    def _lost(self, process: BaseProcess) -> LostTask:
        """Describe how a process ended: with the last line of its output, and its fault report or exit status."""
        faults = _end_of(Path(self._outputs.name, f"{process.pid}{_FAULTS}"))
        match = _FAULT.search(faults)
        hung = match is not None and match[0].startswith("Timeout")
        fault = _fault(match, faults) if match else _status(process.exitcode or 0)
        output = _end_of(Path(self._outputs.name, f"{process.pid}{_PRINTED}")).rpartition("\n")[2]
        details = "; ".join(printable(part, _LINE) for part in (output, fault) if part)
        killed = match is None and process.exitcode in _KILLED
        end = "was ended at its time limit" if hung else "died"
        return LostTask(f"its process {end}{f' ({details})' if details else ''}", hung, killed)


def _stopped(process: BaseProcess) -> bool:
    """Return whether a signal has stopped a process; False on systems that do not report this."""
    if process.pid is None or not hasattr(os, "waitid"):
        return False
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _end_of(path: Path) -> str:
    """Return the end of a file as text without surrounding whitespace; empty if there is no file."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _OUTPUT))
        return file.read(_OUTPUT).decode(errors="replace").strip()


def _fault(fault: re.Match[str], text: str) -> str:
    """Return the fault in faulthandler's report `text`, with the innermost call outside Python's standard library.

    `fault` is the match of the fault's description in the report.
    """
    *_, calls = ["", *_STACK.findall(text[fault.end() :].partition("Current thread")[2] or text[fault.end() :])]
    frames = _FRAME.findall(calls)
    user_frames = [frame for frame in frames if not frame[0].startswith(sysconfig.get_path("stdlib"))]
    return fault[0] + "".join(f" at {path}:{line}" for path, line in (user_frames or frames)[:1])


def _status(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _serve(pipe: Connection, outputs: str) -> None:
    """Run tasks from a pipe until the pipe is closed; the main function of a worker process.

    `outputs` is the folder for the file with the process's output.
    """
    _prepare(outputs)
    while True:
        try:
            function, task = pipe.recv()
        except EOFError:
            return
        error, result = None, None
        try:
            result = function(task)
        except Exception as raised:
            error = raised
        pipe.send((error, result))


def _prepare(outputs: str) -> None:
    """Set up a worker process that uses one BLAS thread, writes its output to a file, and ends with its parent.

    The file is in the folder `outputs`; output to the terminal would garble the progress bar. Ctrl-C ends the process
    without a traceback.
    """
    # Both files stay open for the lifetime of the worker.
    output, faults = (
        open(Path(outputs, f"{os.getpid()}{ending}"), "a+", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115
        for ending in (_PRINTED, _FAULTS)
    )
    sys.stdout = sys.stderr = output
    # Python's own reports go to a separate file, so that output of the subject cannot imitate them.
    sys.__stderr__ = faults  # type: ignore[misc]
    for descriptor in (1, 2):  # also redirects libraries and child processes
        os.dup2(output.fileno(), descriptor)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a separate process group, so that the worker's children can be ended with it
    faulthandler.enable(faults)
    # On Linux, the kernel ends this process with its parent, even while a library blocks the Python interpreter.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, args=(output.fileno(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    admit_interrupts()


def _end_with_parent(output: int) -> None:
    """End this process when its parent ends; until then, keep its output file short.

    `output` is the descriptor of this file.
    """
    parent = parent_process()
    assert parent is not None
    while parent.is_alive():
        parent.join(_POLL_SECONDS)
        with contextlib.suppress(OSError):  # the subject closed it
            if os.fstat(output).st_size > _OUTPUT:
                end = os.pread(output, _END, os.fstat(output).st_size - _END) if hasattr(os, "pread") else b""
                os.ftruncate(output, 0)
                os.write(output, end)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
