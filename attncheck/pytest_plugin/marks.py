"""Marks of tests: one that examines a property of the subject, and one that states something of the theory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

# Names of the marks.
EXAMINES, THEORY = "attncheck_examines", "attncheck_theory"
_Test = TypeVar("_Test", bound=Callable[..., None])


def examines(name: str, strategy: Any) -> pytest.MarkDecorator:
    """Mark a test as examining a property on anchors and on layers or programs drawn from a hypothesis strategy.

    The test takes the arguments ``layer``, or ``case`` for programs, and ``hold``, and calls ``hold(layer)``.

    Parameters
    ----------
    name : str
        A property of `attncheck.checks.registry.PROPERTIES`.
    strategy : hypothesis strategy of AttentionLayer or ProgramCase
    """
    # A mark that is looked up by name is Any to mypy.
    return getattr(pytest.mark, EXAMINES)(name, strategy)  # type: ignore[no-any-return]


def theory(key: str, strategy: Any = None, **parameters: Sequence[Any]) -> Callable[[_Test], _Test]:
    """Mark a test of a statement of the theory, which examines nothing of the subject.

    It becomes one item per case. Each is planned, and its verdict is in the record and in the digest of the run, with
    the numbers that the test finds: it hands them to the fixture ``note``, as in ``note(order=-1.0)``. It asserts what
    is computed. Where it draws random numbers it keys them by the fixture ``run_seed``, and hands estimates with their
    errors, or p-values, to ``note``, a ``Statement``, so that looks on fresh draws decide.

    Parameters
    ----------
    key : str
        ``group.statement``: what the statement is known by. It never changes, and keys what is drawn.
    strategy : hypothesis strategy, optional
        Of the layers or stacks that the test takes as ``layer`` or ``stack``, the same for the same run seed.
    **parameters : sequence
        Values of further arguments, for a test without a strategy: all combinations are cases.
    """
    if not re.fullmatch(r"\w+\.\w+", key):
        raise ValueError(f"key={key!r}: is not of the form group.statement; use letters, digits and _, e.g. 'rates.kl'")
    mark = getattr(pytest.mark, THEORY)(key, strategy, **parameters)
    return lambda test: pytest.mark.usefixtures("note")(mark(test))
