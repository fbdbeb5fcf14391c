"""Results of methods, kept in their objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_Object = TypeVar("_Object")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate[_Object, _Arguments], _Result]


def kept(method: _Method[_Object, _Arguments, _Result]) -> _Method[_Object, _Arguments, _Result]:
    """Decorate a method so that each object caches the results, by positional arguments, which must be hashable.

    Examples
    --------
    >>> class Squares:
    ...     @kept
    ...     def of(self, number):
    ...         return [number**2]
    >>> squares = Squares()
    >>> squares.of(3) is squares.of(3)
    True
    """

    @functools.wraps(method)
    def found(self: _Object, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        results: dict[Any, _Result] = vars(self).setdefault(f"_kept_{method.__name__}", {})
        if arguments not in results:
            results[arguments] = method(self, *arguments, **named)
        return results[arguments]

    return found
