"""`Workers`, the interface of executors that run tasks, and an executor that uses this process."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

from attncheck._lib.errors import refuse

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class LostTask:
    """Placeholder for the result of a task whose process died.

    ``reason`` says what happened to the process, and ends with its last output in brackets. ``hung`` is True if the
    process was ended at its time limit. ``killed`` is True if something else ended it, such as the operating system
    when memory ran out.
    """

    reason: str
    hung: bool = False
    killed: bool = False

    @property
    def remedy(self) -> str:
        """What a user can do about a subject whose process died."""
        return "if memory ran out, use fewer workers; then run again" if self.killed else "mend the simulator"


class Workers(abc.ABC):
    """Executor of tasks, and a context manager that ends its workers on exit.

    A worker that dies loses only its own task.

    Attributes
    ----------
    name : str
        Description of the workers, such as "2 processes".
    travels : bool
        Whether tasks go to other processes.
    """

    name: str
    travels = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all workers."""
        return

    @abc.abstractmethod
    def gather(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[int, _Result | LostTask]]:
        """Yield (index, result) of each task as it completes; an exception in a task is raised here."""

    def results(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result | LostTask]:
        """Return the result of each task, in the order of the tasks."""
        by_index = dict(self.gather(function, tasks))
        return [by_index[index] for index in range(len(tasks))]

    def in_order(self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterator[_Result]:
        """Yield the result of each task in order; raises InputError for a task whose process died."""
        results: dict[int, _Result] = {}
        position = 0
        for index, result in self.gather(function, tasks):
            if isinstance(result, LostTask):
                refuse("workers", self.name, f"{tasks[index]}: {result.reason}", "use fewer workers")
            results[index] = result
            while position in results:
                yield results.pop(position)
                position += 1


class InProcess(Workers):
    """Runs tasks in this process and discards what they print.

    Examples
    --------
    >>> with InProcess() as workers:
    ...     workers.results(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    name = "this process"
    travels = False

    def gather(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[int, _Result | LostTask]]:
        """Yield the results in order."""
        for index, task in enumerate(tasks):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                result = function(task)
            yield index, result
