"""Process pools: one thread each, and silent on Ctrl-C at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from attncheck._lib import executors
from attncheck._lib.executors import ExecutorSpec, LostTask, TaskExecutor, here, pool
from attncheck._lib.processes import interrupts_held, lost_a_process, pool_of
from tests._lib import tasks

WaitFor = Callable[[Callable[[], bool]], None]

# Its processes start slowly, and a file signals that they do.
SCRIPT = """
import pathlib, time
from attncheck._lib.processes import pool_of

if __name__ == "__main__":
    try:
        with pool_of(2) as pool:
            print(list(pool.map(abs, [-1, 2, -3])))
    except KeyboardInterrupt:
        print("interrupted")
else:
    pathlib.Path("begun").touch()
    time.sleep(2)
"""


# Prints the number of its worker, which never ends by itself.
ORPHAN = """
import os, sys, time
from attncheck._lib.processes import pool_of

if __name__ == "__main__":
    with pool_of(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 1e6)
        time.sleep(1e6)
"""


def test_work_is_shared_by_processes_of_one_thread() -> None:
    with pool_of(2) as pool:
        assert list(pool.map(abs, [-1, 2, -3])) == [1, 2, 3]
        assert pool.submit(os.getpid).result() != os.getpid()
        assert {each["num_threads"] for each in pool.submit(threadpool_info).result()} <= {1}


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX has them")
def test_ctrl_c_while_processes_begin_is_silent(
    interrupt: Callable[[list[str], Path], tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    assert interrupt(["script.py"], tmp_path) == ("interrupted\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as POSIX has them")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_was_held_back_comes_at_the_end(number: int, request: pytest.FixtureRequest) -> None:
    reached = []
    before = signal.signal(number, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(number, before))

    def press() -> None:
        with interrupts_held():
            os.kill(os.getpid(), number)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        press()
    assert reached == ["the end"]


def test_a_pool_ends_though_half_a_result_was_written(wait_for: WaitFor) -> None:
    with pool_of(1) as pool:
        half = pool.submit(tasks.half_a_result)
        wait_for(lambda: lost_a_process(pool))
    with pytest.raises(BrokenExecutor):
        half.result()


def test_a_task_that_leaves_half_a_result_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_UNNOTICED", 0.2)
    monkeypatch.setattr(executors, "_ASKED", 0.1)
    with TaskExecutor(pool(1)) as executor:
        assert isinstance(executor.results(tasks.half_a_result, [0])[0], LostTask)
        assert executor.results(abs, [-1]) == [1]


def test_a_lost_task_comes_with_the_last_line_of_its_process() -> None:
    with TaskExecutor(pool(1)) as executor:
        (lost,) = executor.results(tasks.gives_up, [0])
        assert isinstance(lost, LostTask)
        assert lost.words == "no licence; exit status 3"
        assert lost.reason == "its process died, also when the task was run alone (no licence; exit status 3)"


def test_a_process_that_prints_of_a_time_limit_has_died() -> None:
    with TaskExecutor(pool(1)) as executor:
        (lost,) = executor.results(tasks.mimics_a_time_limit, [0])
    assert isinstance(lost, LostTask)
    assert not lost.hung
    assert lost.reason.startswith("its process died")


@pytest.mark.parametrize("spec", [here(), pool(1)])
def test_the_last_lines_of_living_processes_are_kept(spec: ExecutorSpec) -> None:
    with TaskExecutor(spec) as executor:
        executor.results(abs, [-1])
        assert executor.printed() == []
        executor.results(tasks.prints_lines, [3, 12])
        assert executor.printed() == [f"line {number}" for number in range(2, 12)]


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="without os.waitid, a stopped process is not seen")
def test_a_task_that_stops_its_process_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_UNNOTICED", 0.2)
    monkeypatch.setattr(executors, "_ASKED", 0.1)
    with TaskExecutor(pool(1)) as executor:
        assert isinstance(executor.results(tasks.stops, [0])[0], LostTask)
        assert executor.results(abs, [-1]) == [1]


@pytest.mark.skipif(not Path("/proc").exists(), reason="whether the child still runs is read from /proc")
def test_a_task_that_hangs_is_tried_once_and_its_children_end(tmp_path: Path, wait_for: WaitFor) -> None:
    record = tmp_path / "record"
    with TaskExecutor(pool(1)) as executor:
        (lost,) = executor.results(tasks.hangs, [str(record)])
    assert isinstance(lost, LostTask)
    assert lost.hung
    (child,) = map(int, record.read_text("utf-8").split())
    wait_for(lambda: not running(child))


def running(process: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent to ask."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text("utf-8").rpartition(") ")[2][0] != "Z"


def test_a_lost_task_comes_with_its_fault_and_line() -> None:
    with TaskExecutor(pool(1)) as executor:
        aborted, killed = executor.results(tasks.ends, ["abort", "kill"])
        assert isinstance(aborted, LostTask)
        assert isinstance(killed, LostTask)
        line = tasks.ends.__code__.co_firstlineno + 3
        assert aborted.words == f"assertion failed; Fatal Python error: Aborted at {tasks.__file__}:{line}"
        assert killed.words == "killed by SIGKILL"


def test_output_of_a_process_stays_short(wait_for: WaitFor) -> None:
    with pool_of(1) as pool:
        written = pool.submit(tasks.prints_for_long)
        assert written.result() > 2**21
        (output,) = Path(pool.outputs.name).glob("*.out")  # type: ignore[attr-defined]  # of pools of processes
        wait_for(lambda: output.stat().st_size < 2**21)


def test_a_pool_ends_in_the_middle_of_a_task(wait_for: WaitFor) -> None:
    with pool_of(1) as pool:
        asleep = pool.submit(time.sleep, 1e6)
        wait_for(asleep.running)
    with pytest.raises(BrokenExecutor):
        asleep.result()


@pytest.mark.skipif(sys.platform == "win32", reason="processes are asked for as POSIX has them")
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

    def ended() -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, 0)
            return Path(f"/proc/{worker}/stat").exists() and ") Z " in Path(f"/proc/{worker}/stat").read_text()
        return True

    wait_for(ended)
