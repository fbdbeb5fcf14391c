"""Executor specs from command-line options: processes, a user's executor, or a dask cluster."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from attncheck._lib.errors import InputError, check_whole, refuse
from attncheck._lib.executors import ExecutorSpec, here, pool
from attncheck._lib.imports import find

_DASK = "dask:"
# Maximum number of seconds for a scheduler to answer.
_ANSWER = 10.0
# Tasks submitted at a time; the scheduler distributes them and retries those of dead workers.
_AT_ONCE = 10_000


def spec_of(executor: str | None, workers: str) -> ExecutorSpec:
    """Return the executor spec for command-line options, or raise `InputError`.

    `executor` is ``module:make``, ``dask:ADDRESS``, or None for processes; `workers` is a number, ``auto`` for one
    per core, or ``0`` for this process.

    Examples
    --------
    >>> spec_of(None, "2").name, spec_of(None, "0").name
    ('2 processes', 'here')
    """
    cores = os.cpu_count() or 1
    typed = cores if workers == "auto" else int(workers) if workers.isdecimal() else workers
    number = check_whole("workers", typed, 0 if executor is None else 1, "pass a number of processes, or auto")
    if executor is None:
        return pool(number) if number else here()
    if executor.startswith(_DASK):
        return _of_dask(executor, executor.removeprefix(_DASK))
    return ExecutorSpec(executor, functools.partial(_made, executor, _found(executor)), number)


def _found(executor: str) -> Callable[[], Any]:
    remedy = "pass module:make, a function without arguments that returns an executor, or dask:tcp://HOST:PORT"
    if not all(executor.partition(":")):
        refuse("executor", executor, "is not of the form module:make", remedy)
    try:
        make = find(executor)
    except (Exception, SystemExit) as error:  # importing a module may raise anything
        refuse("executor", executor, f"cannot be imported ({str(error) or type(error).__name__})", remedy)
    if not callable(make):
        refuse("executor", executor, "is not a function", remedy)
    return make  # type: ignore[no-any-return]  # an imported attribute is Any


def _made(name: str, make: Callable[[], Any]) -> Executor:
    """Return a new executor; raises InputError if `make` fails or does not return an executor."""
    try:
        made = make()
    except (Exception, SystemExit) as error:
        raise InputError(f"executor={name}: raised {type(error).__name__}: {error}; fix it") from error
    if not isinstance(made, Executor):
        problem = f"returned {type(made).__name__}, not a concurrent.futures.Executor"
        refuse("executor", name, problem, "return one, e.g. concurrent.futures.ProcessPoolExecutor()")
    return made


def _of_dask(name: str, address: str) -> ExecutorSpec:
    """Return the spec of a dask scheduler; raises InputError without dask or for an invalid address."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        refuse("executor", name, "needs dask, which is not installed", "pip install 'attncheck[dask]'")
    try:
        # With an invalid address, a client would wait for 20 s and print a traceback.
        distributed.comm.resolve_address(address)
    except Exception as error:  # also raised for protocols that are not installed
        refuse("executor", name, f"is not a valid address ({error})", "pass dask:tcp://HOST:PORT of a scheduler")
    client = functools.partial(_client, distributed, name, address)
    return ExecutorSpec(name, client, _AT_ONCE, (distributed.KilledWorker,), _deserted)


@contextlib.contextmanager
def _client(distributed: Any, name: str, address: str) -> Iterator[Executor]:
    """Yield the executor of a dask client; raises InputError if no scheduler answers."""
    try:
        client = distributed.Client(address, timeout=_ANSWER, set_as_default=False)
    except Exception as error:  # any error of the connection or the settings
        remedy = "start one with `dask scheduler` and pass its address, dask:tcp://HOST:PORT"
        refuse("executor", name, f"no scheduler answers ({error})", remedy)
    # Tasks with equal arguments must not share a result.
    executor = client.get_executor(pure=False)

    def end() -> None:
        executor.shutdown(wait=False)  # also cancels tasks in progress
        client.close()

    try:
        yield executor
    finally:
        ending = threading.Thread(target=end, daemon=True)  # not to wait for a scheduler that hangs
        ending.start()
        ending.join(_ANSWER)


def _deserted(executor: Any) -> bool:
    """Return whether the scheduler has no workers, no longer runs, or does not answer."""
    client = executor._client  # a ClientExecutor has no public access to its client
    if client.status != "running":
        return True
    try:
        return not client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER)["workers"]
    except OSError:  # TimeoutError, or a lost connection
        return True
