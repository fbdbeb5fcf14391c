"""The mark for tests of the subject's properties."""

from __future__ import annotations

from typing import Any

import pytest

# Name of the mark.
EXAMINES = "attncheck_examines"


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
