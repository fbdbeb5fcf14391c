"""Who does the work, from what a person typed: processes, an executor of somebody's own, or a dask cluster."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from attncheck._lib.errors import InputError, check_whole, refuse
from attncheck._lib.executors import ExecutorSpec, here, pool
from attncheck._lib.imports import find

_DASK = "dask:"
# How long a scheduler may take to answer.
_ANSWER = "10s"
# Pieces that a scheduler has at a time: it deals them out, and does again what a dead worker had.
_AT_ONCE = 10_000


def spec_of(executor: str | None, workers: str) -> ExecutorSpec:
    """Return who does the work, from what a person typed.

    Parameters
    ----------
    executor : str or None
        ``module:make``, which is called and returns an executor; ``dask:`` and the address of a scheduler; or None
        for processes.
    workers : str
        How many processes, or pieces of work that an executor has at a time; ``auto`` for one for each core; ``0`` for
        this process.

    Raises
    ------
    InputError
        If there is no such executor.

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
    remedy = "name a function without arguments that returns an executor, module:make, or dask:tcp://HOST:PORT"
    if not all(executor.partition(":")):
        refuse("executor", executor, "is not of the form module:make", remedy)
    try:
        make = find(executor)
    except (Exception, SystemExit) as error:  # its module may do anything
        refuse("executor", executor, f"cannot be imported ({str(error) or type(error).__name__})", remedy)
    if not callable(make):
        refuse("executor", executor, "is no function", remedy)
    return make  # type: ignore[no-any-return]


def _made(name: str, make: Callable[[], Any]) -> Executor:
    """Return a new executor.

    Raises
    ------
    InputError
        If what was named makes none.
    """
    try:
        made = make()
    except (Exception, SystemExit) as error:
        raise InputError(f"executor={name}: failed with {type(error).__name__}: {error}; mend it") from error
    if not isinstance(made, Executor):
        problem = f"returned {type(made).__name__}, which is no concurrent.futures.Executor"
        refuse("executor", name, problem, "return one, e.g. concurrent.futures.ProcessPoolExecutor()")
    return made


def _of_dask(name: str, address: str) -> ExecutorSpec:
    """Return the workers of a scheduler.

    Raises
    ------
    InputError
        If dask is not installed, or the address is none.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        refuse("executor", name, "takes dask, which is not installed", "pip install 'attncheck[dask]'")
    try:
        # A client of what is no address waits for twenty seconds, and prints a traceback.
        distributed.comm.resolve_address(address)
    except Exception as error:  # also of protocols that are not installed
        refuse("executor", name, f"is no address ({error})", "pass that of a scheduler, dask:tcp://HOST:PORT")
    client = functools.partial(_client, distributed, name, address)
    return ExecutorSpec(name, client, _AT_ONCE, (distributed.KilledWorker,), _deserted)


@contextlib.contextmanager
def _client(distributed: Any, name: str, address: str) -> Iterator[Executor]:
    """Hand out the executor of a scheduler's client.

    Raises
    ------
    InputError
        If nobody answers there.
    """
    try:
        client = distributed.Client(address, timeout=_ANSWER, set_as_default=False)
    except Exception as error:  # of its connection, or of its settings
        remedy = "begin one by dask scheduler, and pass its address, dask:tcp://HOST:PORT"
        refuse("executor", name, f"no scheduler answers ({error})", remedy)
    with client:
        # Every piece is another one, also where two look the same.
        executor = client.get_executor(pure=False)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)  # what is in progress is cancelled


def _deserted(executor: Any) -> bool:
    """Return whether the scheduler has no worker, or is gone itself."""
    client = executor._client  # a ClientExecutor has no other way to its client
    return client.status != "running" or not client.scheduler_info(n_workers=-1)["workers"]
