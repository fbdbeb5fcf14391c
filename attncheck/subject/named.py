"""Names of subjects, imports by name, and one-line error messages."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import os
import sys
import traceback
from typing import Any

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.imports import import_remedy
from attncheck.subject.guard import guarded

# Longest quoted error message.
_MESSAGE = 200


@dataclasses.dataclass(frozen=True)
class SubjectName:
    """A subject in the form sent to other processes: its name, and the time limit of a call in seconds."""

    name: str
    timeout: float = math.inf


def name_of(call: Any) -> str:
    """Return ``module:name`` of a callable, or of the function that a partial calls."""
    while isinstance(call, functools.partial):
        call = call.func
    module, name = getattr(call, "__module__", "?"), getattr(call, "__qualname__", type(call).__qualname__)
    return f"{module}:{name}"


def imported_by_name(field: str, name: str) -> Any:
    """Import ``module:callable``, also from the current folder."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        refuse(field, name, "is not of the form module:callable", "write e.g. mypackage.attention:function")
    is_builtin = module_name.partition(".")[0] == "attncheck"
    if not is_builtin and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with guarded():
            target: Any = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        remedy = import_remedy(error, "check the module, run in its folder, or add that folder to PYTHONPATH")
        raise InputError(f"{field}={name}: cannot be imported: {in_one_line(error)}; {remedy}") from error
    for part in path.split("."):
        if not hasattr(target, part):
            refuse(field, name, f"{module_name} has no {part!r}", "name a function of that module")
        target = getattr(target, part)
    return target


def in_one_line(error: BaseException) -> str:
    """Return an exception's message, and the file and line of the user's code that raised it, as one line."""
    try:
        message = str(error)
    except BaseException:  # `str` runs foreign code too, which may even raise SystemExit
        message = "(its message cannot be shown)"
    text = " ".join(f"{type(error).__name__}: {message}".split())
    foreign = ("<", sys.prefix, sys.base_prefix)
    frames = [f for f in traceback.extract_tb(error.__traceback__)[1:] if not f.filename.startswith(foreign)]
    location = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return (text if len(text) <= _MESSAGE else text[: _MESSAGE - 1] + "…") + location
