"""`attncheck inspect`: a module's own attention, in a table or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.imports import find
from attncheck.frameworks.inspection import inspect
from attncheck.report.inspection import render_inspection


def print_inspection(
    make: str, width: int, draws: int, seed: int, as_json: bool, call: str | None = None, page: Path | None = None
) -> int:
    """Inspect what a function makes and print it. The arguments are those of `attncheck inspect`."""
    called = None if call is None else found_by(call, "call")
    found = inspect(found_by(make), width, called, draws=draws, seed=seed)
    if page is not None:
        render_inspection(found, make, page)
    print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) if as_json else found)
    return ExitCode.VIOLATED if found.blamed else ExitCode.CONSISTENT


def found_by(name: str, field: str = "make") -> Callable[..., Any]:
    """Import ``module:function``, the current folder included.

    Examples
    --------
    >>> found_by("math:sqrt")(4.0)
    2.0
    """
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        refuse(field, name, "is not of the form module:function", "write e.g. mymodule:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made: Callable[..., Any] = find(name)
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{field}={name}: cannot be imported: {problem}; check its name, and the folder") from error
    return made
