"""Tasks of pools: a module that processes import in no time."""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
import subprocess
import sys
import time

from threadpoolctl import threadpool_info

from attncheck._lib.errors import InputError


def square(number: int) -> int:
    return number * number


def refusing(number: int) -> int:
    raise InputError(f"number={number}: is refused; pass another")


def deadly(number: int, always: frozenset[int], status: int) -> int:
    """Square a number; some end their process."""
    if number in always:
        os._exit(status)
    return number * number


def threads_and_process(task: int) -> tuple[list[int], int]:
    return [each["num_threads"] for each in threadpool_info()], os.getpid()


def sleeps_or_tells(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def half_a_result(number: int = 0) -> None:
    """Die in the middle of writing a result, as a process may on Ctrl-C."""
    pipe = sys._getframe(1).f_locals["pipe"]
    os.write(pipe.fileno(), struct.pack("!i", 10**6))
    os._exit(1)


def leaves_a_child(how: str) -> None:
    """End this process, and leave a child that has its pipe."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0) if how == "quietly" else os.abort()


def writes_to_the_pipe(task: int) -> None:
    pipe = sys._getframe(1).f_locals["pipe"]
    os.write(pipe.fileno(), b"\x00\x00\x00\x05hello")
    time.sleep(600)


def gives_up(task: int) -> int:
    print("starting\nno licence", flush=True)
    os._exit(3)


def ends(how: str) -> None:
    if how == "abort":
        os.write(2, b"assertion failed\n")
        os.abort()
    os.kill(os.getpid(), signal.SIGKILL)


def mimics_a_time_limit(task: int) -> None:
    """Print what faulthandler prints at a time limit, and end."""
    print('Timeout (0:00:05)!\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in a', flush=True)
    os._exit(3)


def prints_for_long(times: int) -> int:
    return sum(os.write(1, b"x" * 2**16) for _ in range(times))


def hangs(record: str) -> None:
    """Note the try, leave a child that sleeps, and end as a guard ends a call that swallows all exceptions."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(record, "a", encoding="utf-8") as file:
        print(child.pid, file=file)
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(0.5, exit=True, file=sys.__stderr__)
    time.sleep(600)


def stops(task: int) -> None:
    """Stop this process, as a debugger or a subject may."""
    os.kill(os.getpid(), signal.SIGSTOP)
