"""Workers that command-line options select: this process, several processes, or a dask cluster."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

from attncheck._lib.errors import check_integer, refuse
from attncheck._lib.processes import Processes
from attncheck._lib.workers import InProcess, LostTask, Workers

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

#: Seconds that a run waits for workers of a cluster when none are left.
PATIENCE = 60.0
# Maximum number of seconds for a scheduler to answer, and seconds between checks for live workers.
_ANSWER, _POLL_SECONDS = 10.0, 1.0
_DASK = "dask:"


class DaskCluster(Workers):
    """Runs tasks on the workers of a dask scheduler, which repeats the tasks of workers that die.

    Raises
    ------
    InputError
        If dask is not installed, the address is invalid, or no scheduler answers.
    """

    def __init__(self, address: str) -> None:
        self.name = f"{_DASK}{address}"
        try:
            self._dask: Any = importlib.import_module("distributed")
        except ImportError:
            refuse("executor", self.name, "needs dask, which is not installed", "pip install 'attncheck[dask]'")
        try:
            # With an invalid address, a client would wait for 20 s and print a traceback.
            self._dask.comm.resolve_address(address)
        except Exception as error:  # also raised for protocols that are not installed
            problem = f"is not a valid address ({error})"
            refuse("executor", self.name, problem, "pass dask:tcp://HOST:PORT of a scheduler")
        self._address = address

    def __enter__(self) -> Self:
        try:
            self._client = self._dask.Client(self._address, timeout=_ANSWER, set_as_default=False)
        except Exception as error:  # any error of the connection or the settings
            remedy = "start one with `dask scheduler` and pass its address, dask:tcp://HOST:PORT"
            refuse("executor", self.name, f"no scheduler answers ({error})", remedy)
        return self

    def __exit__(self, *error: object) -> None:
        ending = threading.Thread(target=self._client.close, daemon=True)  # avoids waiting for a scheduler that hangs
        ending.start()
        ending.join(_ANSWER)

    def gather(
        self, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[int, _Result | LostTask]]:
        """Yield results as they complete; raises InputError if no workers are left."""
        # Tasks with equal arguments must not share a result.
        flying = {self._client.submit(function, task, pure=False): index for index, task in enumerate(tasks)}
        while flying:
            for future in self._completed(list(flying)):
                try:
                    result = self._result_of(future)
                except TimeoutError:
                    if future.status == "error":  # the task raised it
                        raise
                    continue  # the worker left before its result was fetched, so dask repeats the task
                yield flying.pop(future), result

    def _completed(self, flying: list[Any]) -> set[Any]:
        """Wait until at least one of the futures `flying` is completed, and return the completed ones.

        Raises InputError if no workers are left.
        """
        last_alive = time.monotonic()
        while True:
            try:
                with self._client.as_current():
                    done: set[Any] = self._dask.wait(flying, _POLL_SECONDS, return_when="FIRST_COMPLETED").done
                return done
            except CancelledError:
                refuse("executor", self.name, "cancelled the tasks", "restart it and run again")
            except TimeoutError:
                if not self._deserted():
                    last_alive = time.monotonic()
                elif time.monotonic() - last_alive > PATIENCE:
                    problem = f"has had no live worker for {PATIENCE:g} s"
                    refuse("executor", self.name, problem, "start workers and run again")

    def _result_of(self, future: Any) -> Any:
        """Return the result of a completed task; raises TimeoutError if its worker has left."""
        try:
            return future.result(timeout=_ANSWER)
        except self._dask.KilledWorker:
            return LostTask("its worker died, and so did the workers that repeated the task")

    def _deserted(self) -> bool:
        """Return whether the scheduler has no workers, no longer runs, or does not answer."""
        if self._client.status != "running":
            return True
        try:
            identity = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER)
        except OSError:  # TimeoutError, or a lost connection
            return True
        return not identity["workers"]


def workers_of(executor: str | None, number: str) -> Workers:
    """Return the workers for command-line options, or raise `InputError`.

    `executor` is ``dask:ADDRESS`` or None. With None, `number` processes run tasks: ``auto`` is one per core, and ``0``
    is this process alone.

    Examples
    --------
    >>> workers_of(None, "2").name, workers_of(None, "0").name
    ('2 processes', 'this process')
    """
    if executor is not None:
        if not executor.startswith(_DASK):
            refuse("executor", executor, "is not known", "pass dask:tcp://HOST:PORT, or nothing for processes")
        return DaskCluster(executor.removeprefix(_DASK))
    is_integer = number.removeprefix("-").isdecimal()
    value = (os.cpu_count() or 1) if number == "auto" else int(number) if is_integer else number
    count = check_integer("workers", value, 0, "pass a number of processes, 0 for this one, or auto")
    return Processes(count) if count else InProcess()
