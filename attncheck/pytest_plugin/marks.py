"""Marks for tests of the subject's properties and of theory statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

# Names of the marks.
EXAMINES, THEORY = "attncheck_examines", "attncheck_theory"
_Test = TypeVar("_Test", bound=Callable[..., None])


def examines(name: str, strategy: Any) -> pytest.MarkDecorator:
    """Mark a test as examining a property on fixed cases and on cases drawn from a hypothesis strategy.

    The test takes the arguments ``layer`` (``case`` for programs) and ``hold``, and calls ``hold(layer)``, which
    examines the property on the layer.

    Parameters
    ----------
    name : str
        Property to examine: one of attncheck's own (see ``attncheck explain``), or one of registered checks.
    strategy : hypothesis strategy of AttentionLayer or ProgramCase
    """
    # mypy sees marks looked up by name as Any.
    return getattr(pytest.mark, EXAMINES)(name, strategy)  # type: ignore[no-any-return]


def theory(key: str, strategy: Any = None, **parameters: Sequence[Any]) -> Callable[[_Test], _Test]:
    """Mark a test of a theory statement, which does not involve the subject.

    The test becomes one item per case, recorded with the numbers passed to the fixture ``note``, as in
    ``note(order=-1.0)``. Derive random numbers from the fixture ``run_seed``, and pass estimates with errors, or
    p-values, to ``note``, so that looks at fresh draws decide.

    Parameters
    ----------
    key : str
        ``group.statement``: permanent identifier and key of the random stream.
    strategy : hypothesis strategy, optional
        Strategy for the argument ``layer`` or ``stack``.
    **parameters : sequence
        Values of further arguments: all combinations are cases.
    """
    if not re.fullmatch(r"\w+\.\w+", key):
        raise ValueError(f"key={key!r}: is not of the form group.statement; use letters, digits and _, e.g. 'rates.kl'")
    mark = getattr(pytest.mark, THEORY)(key, strategy, **parameters)
    return lambda test: pytest.mark.usefixtures("note")(mark(test))
