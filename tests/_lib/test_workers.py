"""Workers: every task gets a result, whatever dies, and processes are silent on Ctrl-C at any time."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from attncheck._lib import processes
from attncheck._lib.executors import workers_of
from attncheck._lib.processes import Processes
from attncheck._lib.signals import interrupts_deferred
from attncheck._lib.workers import InProcess, LostTask, Workers
from tests._lib import tasks
from tests.refusals import refused

WaitFor = Callable[[Callable[[], bool]], None]

# Prints the number of its worker, which never ends by itself.
ORPHAN = """
import os, time
from attncheck._lib.processes import Processes
from tests._lib.tasks import sleeps_or_tells

if __name__ == "__main__":
    with Processes(1) as workers:
        for _, number in workers.gather(sleeps_or_tells, [0.0, 1e6]):
            print(number, flush=True)
"""


@pytest.mark.parametrize("workers", [InProcess(), Processes(2)])
def test_every_task_comes_to_something_and_its_errors_are_raised(workers: Workers) -> None:
    with workers:
        assert workers.results(tasks.square, range(7)) == [0, 1, 4, 9, 16, 25, 36]
        assert list(workers.in_order(tasks.square, [3, 2])) == [9, 4]
        assert workers.results(tasks.square, []) == []
        refused(lambda: workers.results(tasks.refusing, [3]), r"^number=3: is refused; pass another$")
        assert workers.results(tasks.square, [2]) == [4]


def test_what_ends_its_process_is_lost_and_ends_what_needs_all_tasks() -> None:
    function = functools.partial(tasks.deadly, always=frozenset({0, 2, 5}), status=3)
    with Processes(2) as workers:
        results = workers.results(function, range(6))
        refused(lambda: list(workers.in_order(function, [5, 1])), r"workers='2 processes': 5: its process died")
    lost = {number: result.reason for number, result in enumerate(results) if isinstance(result, LostTask)}
    assert lost == dict.fromkeys((0, 2, 5), "its process died (exit status 3)")
    assert [result for result in results if not isinstance(result, LostTask)] == [1, 9, 16]


ABORTED = f"assertion failed; Fatal Python error: Aborted at {tasks.__file__}:{tasks.ends.__code__.co_firstlineno + 3}"
#: Tasks that end their process, an argument, and what is told of it.
LOST: list[tuple[Callable[..., object], object, str]] = [
    (functools.partial(tasks.deadly, always=frozenset({0}), status=0), 0, ""),  # before it answers
    (tasks.half_a_result, 0, ""),
    (tasks.leaves_a_child, "quietly", ""),
    (tasks.leaves_a_child, "abort", ""),
    (tasks.writes_to_the_pipe, 0, ""),
    (tasks.gives_up, 0, "no licence; exit status 3"),
    (tasks.ends, "abort", ABORTED),
    (tasks.ends, "kill", "killed by SIGKILL"),
    (tasks.mimics_a_time_limit, 0, ""),
    (tasks.stops, 0, ""),
]


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="without os.waitid, a stopped process is not seen")
def test_a_lost_task_comes_with_a_reason_and_its_process_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_POLL_SECONDS", 0.1)
    with Processes(1) as workers:
        for function, argument, words in LOST:
            (lost,) = workers.results(function, [argument])
            assert isinstance(lost, LostTask)
            assert not lost.hung
            assert lost.reason.startswith(f"its process died ({words})" if words else "its process died")
        assert workers.results(abs, [-1]) == [1]


def test_no_more_processes_begin_than_tasks_need_and_each_has_one_thread() -> None:
    with Processes(50) as workers:
        ((threads, process),) = workers.in_order(tasks.threads_and_process, [0])
        ((_, again),) = workers.in_order(tasks.threads_and_process, [0])
    assert again == process != os.getpid()
    assert set(threads) <= {1}
    assert threadpool_info()


@pytest.mark.parametrize(
    ("executor", "number", "said"),
    [
        (None, "-1", "workers=-1: must be at least 0; pass a number of processes, 0 for this one, or auto"),
        ("mine:make", "2", r"executor='mine:make': is not known; pass dask:tcp://HOST:PORT, or nothing for processes"),
    ],
)
def test_workers_are_processes_and_what_is_typed_wrong_is_refused(executor: str | None, number: str, said: str) -> None:
    refused(lambda: workers_of(executor, number), said)
    assert workers_of(None, "auto").name == f"{os.cpu_count()} processes"
    assert not workers_of(None, "0").travels


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX has them")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_was_held_back_comes_at_the_end(number: int, request: pytest.FixtureRequest) -> None:
    reached = []
    before = signal.signal(number, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(number, before))

    def press() -> None:
        with interrupts_deferred():
            os.kill(os.getpid(), number)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        press()
    assert reached == ["the end"]


@pytest.mark.skipif(not Path("/proc").exists(), reason="whether the child still runs is read from /proc")
def test_a_task_that_hangs_is_ended_with_its_children(tmp_path: Path, wait_for: WaitFor) -> None:
    record = tmp_path / "record"
    with Processes(1) as workers:
        (lost,) = workers.results(tasks.hangs, [str(record)])
    assert isinstance(lost, LostTask)
    assert lost.hung
    (child,) = map(int, record.read_text("utf-8").split())
    wait_for(lambda: not running(child))


def running(process: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent to ask."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text("utf-8").rpartition(") ")[2][0] != "Z"


def test_output_of_a_process_stays_short(wait_for: WaitFor) -> None:
    with Processes(1) as workers:
        assert workers.results(tasks.prints_for_long, [40])[0] > 2**21  # type: ignore[operator]  # it does not die
        (output,) = Path(workers._outputs.name).glob("*.out")
        wait_for(lambda: output.stat().st_size < 2**21)


def test_processes_end_in_the_middle_of_a_task() -> None:
    started = time.monotonic()
    with Processes(2) as workers:
        assert next(workers.gather(tasks.sleeps_or_tells, [1e6, 0.0]))[0] == 1
    assert time.monotonic() - started < 600


@pytest.mark.skipif(not Path("/proc").exists(), reason="whether the worker still runs is read from /proc")
def test_processes_end_with_the_one_that_made_them(tmp_path: Path, wait_for: WaitFor) -> None:
    (tmp_path / "orphan.py").write_text(ORPHAN, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "orphan.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        assert maker.stdout is not None
        worker = int(maker.stdout.readline())
        maker.kill()

    wait_for(lambda: not running(worker))
