"""Process pools: one thread each, and silent on Ctrl-C at any time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from attncheck._lib.processes import interrupts_held, pool_of

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
def test_ctrl_c_that_was_held_back_comes_at_the_end() -> None:
    reached = []

    def press() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        press()
    assert reached == ["the end"]
