"""Subjects by their names, and what was raised in them in one line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.imports import find

# Characters of another's error message that are passed on.
_MESSAGE = 200


def name_of(call: Any) -> str:
    """Return ``module:name`` of a callable."""
    module, name = getattr(call, "__module__", "?"), getattr(call, "__qualname__", type(call).__qualname__)
    return f"{module}:{name}"


def find_subject(name: str) -> Any:
    """Import ``module:callable``, the current folder included, or what makes a layer, ``torch:module:callable``."""
    framework, _, rest = name.partition(":")
    if ":" in rest:
        # Frameworks are above subjects, and none is imported where none is named.
        return find("attncheck.frameworks.named:subject_of_name")(framework, find_subject(rest))
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        refuse("subject", name, "is not of the form module:callable", "write e.g. mypackage.attention:simulate")
    own = module_name.partition(".")[0] == "attncheck"
    if not own and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with np.errstate():  # what the module makes of it ends with its import
            found: Any = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"cannot be imported: {in_one_line(error)}"
        raise InputError(
            f"subject={name}: {problem}; check the module, run this in the folder it lies in, or add that to PYTHONPATH"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            refuse("subject", name, f"{module_name} has no {part!r}", "name a function that the module defines")
        found = getattr(found, part)
    return found


def in_one_line(error: BaseException) -> str:
    """Return what was raised and where in a person's own code, without the line breaks of its message."""
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    text = " ".join(f"{type(error).__name__}: {message}".split())
    foreign = ("<", sys.prefix, sys.base_prefix)
    frames = [f for f in traceback.extract_tb(error.__traceback__)[1:] if not f.filename.startswith(foreign)]
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return (text if len(text) <= _MESSAGE else text[: _MESSAGE - 1] + "…") + place
