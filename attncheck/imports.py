"""Things by the name that they are imported by, ``module:name``, and back."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
from scipy import special


def path_of(function: Any) -> str:
    """Return ``module:name`` where a function can be imported by it in another process, else an empty string.

    Examples
    --------
    >>> import math
    >>> path_of(math.tanh), path_of(np.tanh), path_of(special.erf), path_of(lambda x: x)
    ('math:tanh', 'numpy:tanh', 'scipy.special:erf', '')
    """
    module = _home(function)
    found: Any = sys.modules.get(module)
    for part in short_name(function).split("."):
        found = getattr(found, part, None)
    # __main__ is another module in another process.
    return f"{module}:{short_name(function)}" if found is function and module != "__main__" else ""


def short_name(function: Any) -> str:
    """Return a function's name within its module; older ufuncs have no qualified one."""
    for attribute in ("__qualname__", "__name__"):
        found = getattr(function, attribute, None)
        if isinstance(found, str):
            return found
    return type(function).__name__


def find(path: str) -> Any:
    """Return what ``module:name`` names; raises ImportError, AttributeError or ValueError where it names nothing.

    Examples
    --------
    >>> find("numpy:tanh") is np.tanh
    True
    """
    module, _, name = path.partition(":")
    with np.errstate():  # what the module makes of it ends with its import
        found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _home(function: Any) -> str:
    """Return the module to import a function from; older ufuncs do not know theirs."""
    if isinstance(function, np.ufunc):
        homes = [home for home in (np, special) if getattr(home, function.__name__, None) is function]
        return homes[0].__name__ if homes else ""
    return str(getattr(function, "__module__", None) or "")
