"""Statements of the theory as test items."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attncheck.runs.statements import Statement


def parametrize(metafunc: pytest.Metafunc, key: str, cases: Sequence[Mapping[str, Any]]) -> None:
    """Make one item per case, with statement and case in its id."""
    from attncheck.runs.statements import named

    found = named(key, cases)
    items = [
        pytest.param(*case.values(), each, id=f"{each.id} {each.case}".strip())
        for each, case in zip(found, cases, strict=True)
    ]
    metafunc.parametrize([*cases[0], "note"] if cases else ["note"], items, indirect=["note"])


def take(item: pytest.Function, statement: Statement, run_seed: int) -> None:
    """Examine a statement by its test; skip if inconclusive."""
    wanted = {name: item.funcargs[name] for name in inspect.signature(item.obj).parameters}
    statement.examine(item.obj, wanted, run_seed)
    if statement.inconclusive:
        # The test is skipped, so that the run is inconclusive and does not pass.
        pytest.skip(f"inconclusive: {statement.inconclusive}")


def told(statement: Statement, call: pytest.CallInfo[None]) -> dict[str, Any] | None:
    """Return the statement's result for the record; None if inconclusive."""
    import msgspec

    failure = None if call.excinfo is None or statement.inconclusive else call.excinfo.value
    if failure is not None and not isinstance(failure, AssertionError | pytest.fail.Exception):
        return None
    line: dict[str, Any] = msgspec.to_builtins(statement.told(None if failure is None else str(failure), call.duration))
    return line
