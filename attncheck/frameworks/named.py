"""Subjects from framework modules that are given by name, such as ``torch:mymodule:build``."""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable
from typing import Any

from attncheck._lib.errors import refuse
from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.inspection import inspect
from attncheck.frameworks.subject import ModuleSubject


def subject_of_name(framework: str, make: Callable[..., Any]) -> ModuleSubject:
    """Return a module as a subject with Gaussian weights of the module's own scales.

    Raises `InputError` if `make` has no default for `width`, or returns modules of another framework.
    """
    written = signatures.signature(make).parameters.get("width")
    width = None if written is None else written.default
    if not isinstance(width, int):
        refuse("subject", getattr(make, "__name__", make), "has no default width", "write def build(width=64): ...")
    home = type(adapter_of(make, width)).__module__.rpartition(".")[2]
    if home != framework:
        refuse("subject", framework, f"is not the module's framework, which is {home}", f"write {home}:module:callable")
    return inspect(make, width).subject()
