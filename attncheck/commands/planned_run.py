"""Collection of test items and theory statements without pytest."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import refuse
from attncheck._lib.version import PACKAGE
from attncheck.looks.domains import LAYERS
from attncheck.looks.item import Item
from attncheck.pytest_plugin.marks import EXAMINES, THEORY
from attncheck.records.schema import StatementResult
from attncheck.runs.run import Run
from attncheck.runs.statements import Statement, cases_of, named


@dataclasses.dataclass(frozen=True, eq=False)
class StatementTask:
    """A theory statement on one case, as a task that any process can run: file, test, arguments and seed."""

    module: str
    test: str
    arguments: Mapping[str, Any]
    seed: int
    id: str
    case: str


class StatementOutcome(NamedTuple):
    """Result of an examined statement, or the reason for its absence."""

    theory: StatementResult | None
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run with its plan, items and statements."""

    run: Run
    items: tuple[Item, ...]
    stated: tuple[StatementTask, ...]


def properties_folder() -> Path:
    """Return the folder of properties, in the package or a clone."""
    for folder in (PACKAGE / "properties", PACKAGE.parent / "properties"):
        if folder.is_dir():
            return folder
    refuse("properties", str(PACKAGE), "are not installed", "install attncheck again")


def collect(run: Run, folder: Path) -> PlannedRun:
    """Return a run with the plan that pytest would collect from a folder of properties.

    Files ``test_*.py`` examine the subject, those in the folder ``theory`` the statements of the theory. Raises
    `InputError` if nothing is examined.
    """
    items = _items(run, folder)
    stated = tuple(statements(run, folder)) if run.theory else ()
    if not items and not stated:
        refuse("only", list(run.only), f"leaves nothing to examine of {run.subject.name}", "choose other properties")
    settled = run.settled([item.id for item in items], [one.id for one in stated])
    return PlannedRun(settled, items, stated)


def _items(run: Run, folder: Path) -> tuple[Item, ...]:
    """Return the planned items, without repetitions."""
    marked = [mark.args for _, _, mark in _marked(folder, EXAMINES)]
    properties = [*marked, *((name, LAYERS.strategy(name)) for name in run.registered)]
    return tuple(dict.fromkeys(item for name, strategy in properties for item in run.items(name, strategy)))


def statements(run: Run, folder: Path) -> Iterator[StatementTask]:
    """Yield the cases of all theory statements."""
    for marked in _marked(folder / "theory", THEORY):
        yield from _stated(run, *marked)


def _marked(folder: Path, kind: str) -> Iterator[tuple[str, Any, pytest.Mark]]:
    """Iterate over marked tests: module, test and mark, in file order."""
    for path in sorted(folder.glob("test_*.py")):
        for name, test in vars(_module(path)).items():
            if name.startswith("test_"):
                yield from ((path.stem, test, mark) for mark in getattr(test, "pytestmark", ()) if mark.name == kind)


def _stated(run: Run, module: str, test: Any, mark: pytest.Mark) -> Iterator[StatementTask]:
    key, strategy = mark.args
    cases = cases_of(run, key, strategy, mark.kwargs, tuple(inspect.signature(test).parameters))
    for statement, case in zip(named(key, cases), cases, strict=True):
        yield StatementTask(module, test.__name__, case, run.seed, statement.id, statement.case)


def settle(stated: StatementTask) -> StatementOutcome:
    """Call a statement's test as pytest does, with one BLAS thread."""
    test = getattr(_module(properties_folder() / "theory" / f"{stated.module}.py"), stated.test)
    statement = Statement(stated.id, stated.case)
    offered = {"run_seed": stated.seed, "note": statement, **stated.arguments}
    wanted = {name: offered[name] for name in inspect.signature(test).parameters}
    started = time.perf_counter()
    failure: str | None = None
    try:
        with own_arithmetic():
            statement.examine(test, wanted, stated.seed)
    except (AssertionError, pytest.fail.Exception) as error:
        failure = str(error) or _where(error)
    except Exception as error:
        return StatementOutcome(None, f"{stated.module}::{stated.test}[{stated.id}]: {type(error).__name__}: {error}")
    return StatementOutcome(statement.told(failure, time.perf_counter() - started))


def _where(error: BaseException) -> str:
    """Return the line of the failed assertion."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return last.line or "an assertion failed"


@functools.lru_cache(maxsize=64)
def _module(path: Path) -> ModuleType:
    """Import a properties file once, under a unique name."""
    name = f"attncheck_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up here
    spec.loader.exec_module(module)
    return module
