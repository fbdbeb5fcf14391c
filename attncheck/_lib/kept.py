"""Cache for the results of methods, stored in the object of the method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

_Object = TypeVar("_Object")
_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")
_Method = Callable[[_Object, *_Arguments], _Result]


def kept(method: _Method[_Object, *_Arguments, _Result]) -> _Method[_Object, *_Arguments, _Result]:
    """Cache the results of a method in each object; arguments of the method must be positional and hashable.

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
    def wrapper(self: _Object, /, *arguments: *_Arguments) -> _Result:
        results: dict[Any, _Result] = vars(self).setdefault(f"_kept_{method.__name__}", {})
        if arguments not in results:
            results[arguments] = method(self, *arguments)
        return results[arguments]

    return wrapper
