"""User functions as values of layer fields, named by import path in keys and records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attncheck._lib.errors import refuse
from attncheck._lib.imports import imported, path_of, short_name

# Prefix in records that marks the name of a function without an import path.
_LOCAL = "local:"


def validate(
    field: str, value: Any, known: Sequence[str], remedy: str, examine: Callable[[Callable[..., Any]], object]
) -> Any:
    """Return a validated value: one of the known names, the import path of a function, or a local function.

    Functions given by path are imported on first use. `examine` raises `InputError` for an unusable function.
    """
    if callable(value):
        if getattr(value, "__hash__", None) is None:
            refuse(field, value, "cannot be hashed", "pass a function, or an object with __hash__")
        examine(value)
        return path_of(value) or value
    if isinstance(value, str) and ":" in value:
        return str(value)
    if not isinstance(value, str) or value not in known:
        refuse(field, value, "is not known", f"use one of {', '.join(map(repr, known))}, {remedy}")
    return str(value)


def resolve(field: str, value: Any, trust: Sequence[str] | None = None) -> Any:
    """Return the function that a validated value names.

    With `trust`, functions of other modules are refused, except ufuncs of NumPy and SciPy.
    """
    if callable(value):
        return value
    if value.startswith(_LOCAL):
        problem = "was a local function, which cannot be imported"
        refuse(field, value, problem, "define it at the top level of a module and build the layer again")
    return imported(field, value, [value.partition(":")[0]] if trust is None else trust)


def label(value: Any) -> str:
    """Return a validated value as text, for keys and records."""
    return f"{_LOCAL}{short_name(value)}" if callable(value) else str(value)


def check_trusted(field: str, value: Any, trust: Sequence[str]) -> None:
    """Raise `InputError` if a recorded value names a local function, or a function of an untrusted module."""
    if isinstance(value, str) and ":" in value:
        resolve(field, value, tuple(trust))
