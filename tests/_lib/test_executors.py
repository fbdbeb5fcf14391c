"""Executors: every task gets a result, whatever dies, and bad specs are refused."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from attncheck._lib import executors
from attncheck._lib.errors import InputError
from attncheck._lib.executor_spec import spec_of
from attncheck._lib.executors import ExecutorSpec, LostTask, TaskExecutor, here, in_order, pool
from tests._lib.tasks import deadly, refusing, square


def threads() -> Executor:
    return ThreadPoolExecutor(2)


def nothing() -> None:
    return None


def failing() -> Executor:
    raise OSError("no cluster")


def leaving() -> Executor:
    raise SystemExit("no cluster")


class Refusing(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("on strike")


@pytest.mark.parametrize("spec", [here(), pool(2), spec_of(f"{__name__}:threads", "3")])
def test_every_piece_comes_to_something(spec: ExecutorSpec) -> None:
    with TaskExecutor(spec) as executor:
        assert executor.results(square, range(7)) == [0, 1, 4, 9, 16, 25, 36]
        assert list(in_order(executor, square, [3, 2])) == [9, 4]
        assert executor.results(square, []) == []


def test_what_ends_its_process_twice_is_lost_and_nothing_else(tmp_path: Path) -> None:
    function = functools.partial(deadly, folder=tmp_path, always=frozenset({2}), once=frozenset({0}))
    with TaskExecutor(pool(2)) as executor:
        found = executor.results(function, range(5))
    lost = [number for number, result in enumerate(found) if isinstance(result, LostTask)]
    assert lost == [2]
    assert [result for result in found if not isinstance(result, LostTask)] == [0, 1, 9, 16]


@pytest.fixture
def hopeless_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after two lost tasks without a finished one: every loss restarts a pool twice."""
    monkeypatch.setattr(executors, "_HOPELESS", 2)


@pytest.mark.usefixtures("hopeless_soon")
def test_where_the_first_pieces_all_end_their_process_the_others_are_done(tmp_path: Path) -> None:
    # One more than the number for giving up without a finished task.
    function = functools.partial(deadly, folder=tmp_path, always=frozenset(range(3)), once=frozenset())
    with TaskExecutor(pool(2)) as executor:
        found = executor.results(function, range(6))
    assert found[3:] == [9, 16, 25]
    reasons = {result.reason for result in found[:3] if isinstance(result, LostTask)}
    assert reasons == {"its process died, also when the task was run alone (exit status 1)"}


@pytest.mark.usefixtures("hopeless_soon")
def test_where_every_piece_ends_its_process_not_all_are_tried(tmp_path: Path) -> None:
    function = functools.partial(deadly, folder=tmp_path, always=frozenset(range(20)), once=frozenset())
    with TaskExecutor(pool(2)) as executor:
        found = executor.results(function, range(20))
    reasons = [result.reason for result in found if isinstance(result, LostTask)]
    assert len(reasons) == 20
    assert sum("also when the task was run alone" in reason for reason in reasons) == 2
    assert sum("not retried after 2 other tasks" in reason for reason in reasons) == 18
    assert len(list(tmp_path.iterdir())) < 20


def test_a_piece_that_is_lost_ends_what_needs_all_of_them(tmp_path: Path) -> None:
    function = functools.partial(deadly, folder=tmp_path, always=frozenset({1}), once=frozenset())
    with (
        TaskExecutor(pool(1)) as executor,
        pytest.raises(InputError, match=r"executor='1 processes': 1: its process died, also"),
    ):
        list(in_order(executor, function, [1, 2]))


@pytest.mark.parametrize("spec", [here(), pool(1)])
def test_errors_of_a_piece_are_raised(spec: ExecutorSpec) -> None:
    with TaskExecutor(spec) as executor, pytest.raises(InputError, match=r"^number=3: is refused; pass another$"):
        executor.results(refusing, [3])


def test_nothing_is_begun_where_there_is_no_work() -> None:
    def never() -> Executor:
        raise AssertionError

    with TaskExecutor(ExecutorSpec("never", never, 1)) as executor:
        assert executor.results(square, []) == []


def test_no_more_is_handed_over_than_is_said() -> None:
    flying, most = [0], [0]

    class Counting(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
            future = super().submit(fn, *args, **kwargs)
            future.add_done_callback(lambda _: flying.__setitem__(0, flying[0] - 1))
            return future

    with TaskExecutor(ExecutorSpec("counting", lambda: Counting(8), 3)) as executor:
        executor.results(lambda number: time.sleep(0.01), range(20))
    assert most == [3]


class Idle(Executor):
    """Accepts tasks without running them."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


class GivesUp(Executor):
    """Accepts tasks and gives them up."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def test_nobody_left_is_said_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "PATIENCE", 0.5)
    idle = ExecutorSpec("mine:make", Idle, 2, deserted=lambda executor: True)
    said = r"executor='mine:make': has had no live worker for 0.5 s; start workers and run again"
    with TaskExecutor(idle) as executor, pytest.raises(InputError, match=said):
        executor.results(square, [1])


def test_whoever_comes_back_in_time_is_waited_for() -> None:
    asked: list[float] = []

    def deserted(executor: Executor) -> bool:
        asked.append(time.monotonic())
        if len(asked) == 2:
            held[0].set_result(16)
        return len(asked) < 2

    held: list[Future[int]] = []

    class Late(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            held.append(Future())
            return held[-1]

    with TaskExecutor(ExecutorSpec("late", Late, 1, deserted=deserted)) as executor:
        assert executor.results(square, [4]) == [16]
    assert len(asked) == 2


def test_work_that_is_given_up_is_said() -> None:
    with (
        TaskExecutor(ExecutorSpec("mine:make", GivesUp, 2)) as executor,
        pytest.raises(InputError, match="cancelled the tasks"),
    ):
        executor.results(square, [1])


@pytest.mark.parametrize(
    ("executor", "workers", "said"),
    [
        (None, "-1", r"workers='-1': .*; pass a number of processes, or auto"),
        ("mine:make", "0", r"workers=0: must be at least 1"),
        ("mine", "2", r"executor='mine': is not of the form module:make"),
        ("no_such_module:make", "2", r"executor='no_such_module:make': cannot be imported \(No module named"),
        ("math:make", "2", r"executor='math:make': cannot be imported \(module 'math' has no attribute"),
        ("math:pi", "2", r"executor='math:pi': is not a function"),
        ("../math:pi", "2", r"executor='../math:pi': cannot be imported"),
    ],
)
def test_what_is_typed_wrong_is_refused(executor: str | None, workers: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        spec_of(executor, workers)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", r"returned NoneType, not a concurrent.futures.Executor; return one"),
        ("failing", r"raised OSError: no cluster; fix it"),
        ("leaving", r"raised SystemExit: no cluster; fix it"),
        ("Refusing", r"refuses tasks \(RuntimeError: on strike\); fix it"),
    ],
)
def test_what_makes_no_executor_is_said(name: str, said: str) -> None:
    with TaskExecutor(spec_of(f"{__name__}:{name}", "2")) as executor, pytest.raises(InputError, match=said):
        executor.results(square, [1])


def test_names_say_who_works() -> None:
    assert spec_of(None, "0") == here()
    assert spec_of(None, "3").at_once == 4
    assert spec_of(None, "auto").name == f"{os.cpu_count()} processes"
    assert spec_of("concurrent.futures:ProcessPoolExecutor", "5").at_once == 5
    assert dataclasses.replace(here(), name="other") != here()
    assert isinstance(spec_of("concurrent.futures:ThreadPoolExecutor", "1").make(), concurrent.futures.Executor)
