"""The pytest mark for tests that examine a property of the subject."""

from __future__ import annotations

from typing import Any

import pytest

# Name of the mark.
EXAMINES = "attncheck_examines"


def examines(name: str, strategy: Any = None) -> pytest.MarkDecorator:
    """Mark a test as examining a property on the fixed and random cases of a run.

    The test takes the arguments ``layer`` (``case`` for programs) and ``hold``, and calls ``hold(layer)``, which
    examines the property on the layer.

    Parameters
    ----------
    name : str
        Property to examine: one of attncheck's own (see ``attncheck explain``), or one of registered checks.
    strategy : hypothesis strategy of AttentionLayer or ProgramCase, optional
        Strategy that draws the random cases of this property, in place of those that all properties share.
    """
    # mypy sees marks looked up by name as Any.
    return getattr(pytest.mark, EXAMINES)(name, strategy)  # type: ignore[no-any-return]
