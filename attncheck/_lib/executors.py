"""Tasks on any `concurrent.futures.Executor`, resilient to dying processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from attncheck._lib.errors import refuse
from attncheck._lib.processes import (
    LastWords,
    end_pool,
    interrupts_obeyed,
    last_words,
    lost_a_process,
    pool_of,
    printed,
)
from attncheck._lib.text import printable

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

#: Seconds that a run waits for new workers when none are left.
PATIENCE = 60.0
# The remaining tasks are given up if none has completed and this many, run alone, have killed their process. While
# tasks run concurrently, this many per concurrent task must have done so.
_HOPELESS = 3
# Number of times that a task is run alone after its process died.
_TRIES = 2
# Maximum number of lines kept of the output of tasks, and of characters if tasks run in this process.
_LINES, _CHARACTERS = 10, 2_000
# Seconds between checks for live workers.
_ASKED = 1.0
# Seconds after which a pool that does not notice the death of a process is killed.
_UNNOTICED = 3.0


@dataclasses.dataclass(frozen=True)
class LostTask:
    """Placeholder for the result of a task whose process kept dying.

    ``what`` says what happened to the process, ``words`` is its last output, and ``hung`` says whether it was ended
    because its time was up.
    """

    what: str
    words: str = ""
    hung: bool = False

    @property
    def said(self) -> str:
        """The last output of the process in brackets, or an empty text."""
        return f" ({self.words})" if self.words else ""

    @property
    def reason(self) -> str:
        """What happened to the process, followed by its last output."""
        return f"{self.what}{self.said}"


@dataclasses.dataclass(frozen=True)
class ExecutorSpec:
    """How to make and use an executor.

    Attributes
    ----------
    name : str
    make : callable
        Returns a context manager that yields an executor.
    at_once : int
        Tasks submitted at a time.
    killed : tuple of type
        Exceptions of futures whose process died.
    deserted : callable
        Returns whether an executor lacks the workers to finish its tasks.
    travels : bool
        Whether tasks go to other processes.
    end : callable, optional
        Ends a deserted executor, which is then made again; by default, a run waits for new workers.
    last_words : callable
        Returns the last output of a process that died, in one line; empty if unknown.
    printed : callable
        Returns the end of what tasks printed; empty if unknown.
    """

    name: str
    make: Callable[[], AbstractContextManager[Executor]]
    at_once: int
    killed: tuple[type[BaseException], ...] = ()
    deserted: Callable[[Executor], bool] = lambda executor: False
    travels: bool = True
    end: Callable[[Executor], None] | None = None
    last_words: Callable[[Executor], LastWords] = lambda executor: LastWords()
    printed: Callable[[Executor], str] = lambda executor: ""


class TaskExecutor:
    """Runs tasks on an executor, which is created at the first task and again whenever it breaks.

    Tasks in flight when a process died are repeated alone; if the process dies twice more, the result is `LostTask`.

    Examples
    --------
    >>> with TaskExecutor(here()) as executor:
    ...     executor.results(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, spec: ExecutorSpec) -> None:
        self.spec = spec
        self._open = contextlib.ExitStack()
        self._executor: Executor | None = None
        self._came = False
        self._words = LastWords()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def begin(self) -> None:
        """Make the executor now; raises InputError if that fails."""
        self._executor_now()

    def printed(self) -> list[str]:
        """Return the last lines that tasks printed, shortened, as far as known."""
        text = "" if self._executor is None else self.spec.printed(self._executor)
        return [printable(line) for line in text.splitlines()[-_LINES:]]

    def results(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result | LostTask]:
        """Return the result of each task, in the order of the tasks."""
        found = dict(self.gather(function, tasks))
        return [found[place] for place in range(len(tasks))]

    def gather(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[int, _Result | LostTask]]:
        """Yield (index, result) of each task as it completes; raises InputError if no workers are left."""
        suspects: list[int] = []
        yield from self._done(function, tasks, deque(range(len(tasks))), self.spec.at_once, suspects)
        lost = 0
        # Start with the last tasks, which are cheap and more likely to succeed.
        for place in reversed(suspects):
            if lost == _HOPELESS and not self._came:
                yield place, LostTask(f"not retried after {lost} other tasks whose process died each time")
                continue
            # The process may have died because of another task. Only a task that dies alone is given up.
            alone = len(tasks) == 1
            for tries in range(_TRIES + 1):
                what = "was ended at its time limit" if self._words.hung else "died"
                gone = LostTask(f"its process {what}, also when the task was run alone", *self._words)
                if tries == _TRIES or (alone and gone.hung):
                    lost += 1
                    yield place, gone
                    break
                again: list[int] = []
                yield from self._done(function, tasks, deque([place]), 1, again)
                alone = True
                if not again:
                    break

    def _done(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        waiting: deque[int],
        at_once: int,
        killed: list[int],
    ) -> Iterator[tuple[int, _Result]]:
        """Run tasks, at most `at_once` at a time, and append the indices of those whose process died to `killed`."""
        flying: dict[Future[_Result], int] = {}
        finished: SimpleQueue[Future[_Result]] = SimpleQueue()
        try:
            while waiting or flying:
                broken = False
                while waiting and len(flying) < at_once and not broken:
                    try:
                        future = self._executor_now().submit(function, tasks[waiting[0]])
                    except BrokenExecutor:
                        broken = True
                    except Exception as refused:
                        problem = f"refuses tasks ({type(refused).__name__}: {refused})"
                        refuse("executor", self.spec.name, problem, "fix it and run again")
                    else:
                        flying[future] = waiting.popleft()
                        future.add_done_callback(finished.put)
                if not broken:
                    future = self._next(finished)
                    error = self._error_of(future)
                    if error is None:
                        self._came = True
                        yield flying.pop(future), future.result()
                    else:
                        broken = isinstance(error, BrokenExecutor)
                        killed.append(flying.pop(future))
                if broken:
                    yield from self._salvaged(flying, killed)
                    flying.clear()
                    finished = SimpleQueue()
                    self._renew()
                    if len(killed) >= _HOPELESS * at_once and not self._came:
                        killed += waiting
                        waiting.clear()
        finally:
            for future in flying:
                future.cancel()

    def _salvaged(self, flying: dict[Future[_Result], int], killed: list[int]) -> Iterator[tuple[int, _Result]]:
        """Yield the completed results of a broken executor and record the remaining indices."""
        wait(flying)
        for future, place in flying.items():
            if self._error_of(future) is None:
                yield place, future.result()
            else:
                killed.append(place)

    def _error_of(self, future: Future[_Result]) -> BaseException | None:
        """Return the error if a task's process died, else None; raises InputError if the executor gave up."""
        if future.cancelled():
            refuse("executor", self.spec.name, "cancelled the tasks", "restart it and run again")
        error = future.exception()
        if error is None or isinstance(error, (BrokenExecutor, *self.spec.killed)):
            return error
        raise error

    def _next(self, finished: SimpleQueue[Future[_Result]]) -> Future[_Result]:
        """Wait until a task completes; raises InputError if no workers are left."""
        since: float | None = None
        while True:
            try:
                return finished.get(timeout=_ASKED)
            except Empty:
                pass
            executor = self._executor_now()
            if not self.spec.deserted(executor):
                since = None
            elif since is None:
                since = time.monotonic()
            elif self.spec.end is not None and time.monotonic() - since > _UNNOTICED:
                self.spec.end(executor)  # the futures of its tasks fail
            elif time.monotonic() - since > PATIENCE:
                left = f"has had no live worker for {PATIENCE:g} s"
                refuse("executor", self.spec.name, left, "start workers and run again")

    def _executor_now(self) -> Executor:
        if self._executor is None:
            self._executor = self._open.enter_context(self.spec.make())
        return self._executor

    def _renew(self) -> None:
        self._words = self.spec.last_words(self._executor_now())
        self._executor = None
        self._open.close()


def in_order(executor: TaskExecutor, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
    """Yield the result of each task in order; raises InputError for a task whose process kept dying."""
    found: dict[int, _Result] = {}
    told = 0
    for place, result in executor.gather(function, tasks):
        if isinstance(result, LostTask):
            refuse(
                "executor",
                executor.spec.name,
                f"{tasks[place]}: {result.reason}",
                "use fewer workers",
            )
        found[place] = result
        while told in found:
            yield found.pop(told)
            told += 1


class _InlineExecutor(Executor):
    """Runs tasks immediately in this process; `printed` keeps the end of their output, and the rest is discarded."""

    def __init__(self) -> None:
        self.printed = ""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        output = io.StringIO()
        try:
            with interrupts_obeyed(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        self.printed = output.getvalue().strip()[-_CHARACTERS:] or self.printed
        return future


def _printed_here(executor: Executor) -> str:
    return executor.printed if isinstance(executor, _InlineExecutor) else ""


def here() -> ExecutorSpec:
    """Return the spec of an executor in this process."""
    return ExecutorSpec("here", _InlineExecutor, 1, travels=False, printed=_printed_here)


def processes(number: int) -> ExecutorSpec:
    """Return the spec of that many fresh processes with one BLAS thread each; this process for 0 or 1."""
    if number <= 1:
        return here()
    return pool(number)


def pool(number: int) -> ExecutorSpec:
    """Return the spec of that many fresh processes, even for 1, so that a crash does not end this process."""
    # One extra task is queued so that no process waits for this one.
    make = functools.partial(pool_of, number)
    spec = ExecutorSpec(f"{number} processes", make, number + 1, deserted=lost_a_process, end=end_pool)
    return dataclasses.replace(spec, last_words=last_words, printed=printed)
