"""What the properties examine, without a run of pytest: units of the subject, and statements of attncheck's theory."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import refuse
from attncheck._lib.version import PACKAGE
from attncheck.looks.item import Item
from attncheck.pytest_plugin.marks import EXAMINES, THEORY
from attncheck.records.schema import StatementResult
from attncheck.runs.run import Run
from attncheck.runs.shards import Dealer
from attncheck.runs.statements import Statement, cases_of, named


@dataclasses.dataclass(frozen=True, eq=False)
class StatementTask:
    """A statement of the theory on one case as a piece of work, which any process can do.

    Attributes
    ----------
    module, test : str
        The file from the folder of the properties, without its ending, and the test in it.
    arguments : mapping of str to object
        What the test is called with, beside the run seed and what takes its numbers.
    seed : int
        The run seed.
    id, case : str
        What `attncheck.runs.statements.Statement` has.
    """

    module: str
    test: str
    arguments: Mapping[str, Any]
    seed: int
    id: str
    case: str


class StatementOutcome(NamedTuple):
    """A statement that was examined, or why that could not be done."""

    theory: StatementResult | None
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run with its plan.

    Attributes
    ----------
    run : Run
    items : tuple of Item
        Those that are examined here: of a shard its own.
    stated : tuple of StatementTask
        Statements of the theory, likewise.
    """

    run: Run
    items: tuple[Item, ...]
    stated: tuple[StatementTask, ...]


def properties_folder() -> Path:
    """Return where the properties are: in the installed package, or beside it in a clone.

    Raises
    ------
    InputError
        If they are in neither place.
    """
    for folder in (PACKAGE / "properties", PACKAGE.parent / "properties"):
        if folder.is_dir():
            return folder
    refuse("properties", str(PACKAGE), "are not installed", "install attncheck again")


def collect(run: Run, folder: Path) -> PlannedRun:
    """Return a run with the plan that pytest makes of a folder of properties.

    Parameters
    ----------
    run : Run
        Without a plan.
    folder : Path
        Whose files ``test_*.py`` examine the subject; those in its folder ``theory`` state something of the theory,
        and are imported for a run with statements only.

    Raises
    ------
    InputError
        If the subject cannot say what it supports, or simulates nothing that is examined.
    """
    items = _items(run, folder)
    stated = _own(run, statements(run, folder)) if run.theory else {}
    if not items and not stated:
        refuse("only", list(run.only), f"leaves nothing to examine of {run.subject.name}", "name other properties")
    own_items = tuple(item for item, mine in items.items() if mine)
    own_stated = tuple(one for one, mine in stated.items() if mine)
    part = [item.id for item in own_items] + [one.id for one in own_stated]
    settled = run.settled([item.id for item in items], [one.id for one in stated], part)
    return PlannedRun(settled, own_items, own_stated)


def _items(run: Run, folder: Path) -> dict[Item, bool]:
    """Return the planned units, and whether each is of the run's shard."""
    items: dict[Item, bool] = {}
    dealer = Dealer(run.shard.of if run.shard else 1)
    for _, _, mark in _marked(folder, EXAMINES):
        found = run.items(*mark.args)
        homes = dealer.deal(run.costs(found))
        items |= {item: run.shard in (None, homes[item.case.key]) for item in found}
    return items


def statements(run: Run, folder: Path) -> list[list[StatementTask]]:
    """Return the cases of each statement of the theory."""
    return [list(_stated(run, *marked)) for marked in _marked(folder / "theory", THEORY)]


def _own(run: Run, stated: Iterable[Sequence[StatementTask]]) -> dict[StatementTask, bool]:
    """Return all cases of statements, and whether each is of the run's shard: what they cost is not known."""
    dealer = Dealer(run.shard.of if run.shard else 1)
    found: dict[StatementTask, bool] = {}
    for cases in stated:
        homes = dealer.deal(dict.fromkeys([one.id for one in cases], 1.0))
        found |= {one: run.shard in (None, homes[one.id]) for one in cases}
    return found


def _marked(folder: Path, kind: str) -> Iterator[tuple[str, Any, pytest.Mark]]:
    """Iterate over tests with a mark in a folder: module, test and mark, in the order in which they stand there."""
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
    """Examine a statement: call its test as pytest does, with one BLAS thread."""
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
    """Return the line that was asserted."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return last.line or "an assertion failed"


@functools.lru_cache(maxsize=64)
def _module(path: Path) -> ModuleType:
    """Import a file of properties, once, under a name that nothing else has."""
    name = f"attncheck_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickle look it up
    spec.loader.exec_module(module)
    return module
