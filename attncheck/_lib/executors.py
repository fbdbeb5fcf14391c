"""Work that any `concurrent.futures.Executor` does: results as they come, and none is lost where a process dies."""

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
from attncheck._lib.processes import pool_of

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

#: Seconds that a run waits for somebody who works, where nobody is left.
PATIENCE = 60.0
# Where the first so many pieces and the last so many end their process each time, the others are not tried.
_HOPELESS = 3
# How often a piece is done alone whose process died.
_TRIES = 2
# Seconds between two questions whether anybody is left.
_ASKED = 1.0


@dataclasses.dataclass(frozen=True)
class LostTask:
    """What there is in the place of a result: the piece of work ended its process twice."""

    reason: str


@dataclasses.dataclass(frozen=True)
class ExecutorSpec:
    """Who does the work.

    Attributes
    ----------
    name : str
        As a person typed it.
    make : callable
        Returns a context manager of an executor, as executors are themselves.
    at_once : int
        Pieces that are handed over at a time: those may be lost where a process dies, and are done again.
    killed : tuple of type
        Exceptions of a future that say that its process died.
    deserted : callable
        Of the executor: whether nobody is left who works.
    travels : bool
        Whether pieces go to other processes, which import what they name.
    """

    name: str
    make: Callable[[], AbstractContextManager[Executor]]
    at_once: int
    killed: tuple[type[BaseException], ...] = ()
    deserted: Callable[[Executor], bool] = lambda executor: False
    travels: bool = True


class TaskExecutor:
    """Does pieces of work on an executor, which is made at the first piece, and anew where it broke.

    The pieces that were in progress when a process died are done again, one at a time: a piece that ends its process
    then too, and once more, is `LostTask`, and no other is.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def begin(self) -> None:
        """Make the executor now, to know that there is one before anything is written.

        Raises
        ------
        InputError
            If it cannot be made.
        """
        self._executor_now()

    def results(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result | LostTask]:
        """Return what a function makes of each piece, in their order."""
        found = dict(self.gather(function, tasks))
        return [found[place] for place in range(len(tasks))]

    def gather(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[int, _Result | LostTask]]:
        """Iterate over what a function makes of each piece, with its place among them, as it comes.

        Parameters
        ----------
        function : callable
            That another process can import, if the executor has others.
        tasks : sequence
            The first ones are begun first.

        Raises
        ------
        InputError
            If nobody is left who works.
        Exception
            That the function raises.
        """
        suspects: list[int] = []
        yield from self._done(function, tasks, deque(range(len(tasks))), self.spec.at_once, suspects)
        lost = 0
        # The last ones first: where the dearest pieces ended their process, the others may well not.
        for place in reversed(suspects):
            if lost == _HOPELESS and not self._came:
                yield place, LostTask(f"not tried again after {lost} others whose process died each time")
                continue
            # What another one took down has ended no process itself: two ends when it is alone convict a piece.
            for _ in range(_TRIES):
                again: list[int] = []
                yield from self._done(function, tasks, deque([place]), 1, again)
                if not again:
                    break
            else:
                lost += 1
                yield place, LostTask("its process died, and died again whenever it was done alone")

    def _done(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        waiting: deque[int],
        at_once: int,
        killed: list[int],
    ) -> Iterator[tuple[int, _Result]]:
        """Do pieces, at most so many at once, and note the places of those whose process died."""
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
                        problem = f"takes no work, {type(refused).__name__}: {refused}"
                        refuse("executor", self.spec.name, problem, "mend it, and go on by --resume")
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
        """Yield what was finished of an executor that broke, and note the rest."""
        wait(flying)
        for future, place in flying.items():
            if self._error_of(future) is None:
                yield place, future.result()
            else:
                killed.append(place)

    def _error_of(self, future: Future[_Result]) -> BaseException | None:
        """Return what says that the process of a piece died, if it did.

        Raises
        ------
        InputError
            If whoever shares out the work has gone.
        Exception
            That the piece raised.
        """
        if future.cancelled():
            refuse("executor", self.spec.name, "has given up the work", "begin it again, and go on by --resume")
        error = future.exception()
        if error is None or isinstance(error, (BrokenExecutor, *self.spec.killed)):
            return error
        raise error

    def _next(self, finished: SimpleQueue[Future[_Result]]) -> Future[_Result]:
        """Wait until a piece is finished, or nobody is left who could finish it."""
        deserted: float | None = None
        while True:
            try:
                return finished.get(timeout=_ASKED)
            except Empty:
                pass
            if not self.spec.deserted(self._executor_now()):
                deserted = None
            elif deserted is None:
                deserted = time.monotonic()
            elif time.monotonic() - deserted > PATIENCE:
                left = f"has had nobody who works for {PATIENCE:g} s"
                refuse("executor", self.spec.name, left, "begin workers, and go on with the record by --resume")

    def _executor_now(self) -> Executor:
        if self._executor is None:
            self._executor = self._open.enter_context(self.spec.make())
        return self._executor

    def _renew(self) -> None:
        self._executor = None
        self._open.close()


def in_order(executor: TaskExecutor, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
    """Iterate over what a function makes of each piece, in their order, each as soon as those before it are there.

    Raises
    ------
    InputError
        If a piece ended its process twice.
    """
    found: dict[int, _Result] = {}
    told = 0
    for place, result in executor.gather(function, tasks):
        if isinstance(result, LostTask):
            refuse("executor", executor.spec.name, f"{tasks[place]}: {result.reason}", "use fewer, if memory was short")
        found[place] = result
        while told in found:
            yield found.pop(told)
            told += 1


class _InlineExecutor(Executor):
    """Does what is handed in at once, in this process, silently as others do."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def here() -> ExecutorSpec:
    """Return who does the work in this process."""
    return ExecutorSpec("here", _InlineExecutor, 1, travels=False)


def processes(number: int) -> ExecutorSpec:
    """Return fresh processes of this machine, which have one BLAS thread each; this process where there is one.

    Parameters
    ----------
    number : int
        Of processes.
    """
    if number <= 1:
        return here()
    return pool(number)


def pool(number: int) -> ExecutorSpec:
    """Return fresh processes of this machine, also where there is one: it may die and this process does not."""
    # One more is handed over than is worked on, so that no process waits for this one.
    return ExecutorSpec(f"{number} processes", functools.partial(pool_of, number), number + 1)
