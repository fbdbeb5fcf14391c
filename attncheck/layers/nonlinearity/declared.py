"""User functions as nonlinearities, with declared order and boundedness."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Final, overload

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, refuse
from attncheck._lib.imports import path_of, short_name
from attncheck.layers.nonlinearity import quadrature
from attncheck.layers.nonlinearity.function import LARGEST_ORDER, Nonlinearity

Function = Callable[[FloatArray], FloatArray]

# Entries of Gaussian vectors are smaller than this bound.
_RANGE: Final = 256.0
_VECTORISE: Final = "pass a vectorised function, written with NumPy or wrapped by numpy.vectorize"


@dataclasses.dataclass(frozen=True)
class DeclaredFunction(Nonlinearity):
    """A user's function with its declared properties; build one with `declared`.

    Attributes
    ----------
    function : callable
        φ, vectorised.
    """

    function: Function

    def __post_init__(self) -> None:
        _check_properties(self.name, self.order, self.bounded)
        if self.parameters:
            refuse("parameters", self.parameters, "are for built-in functions only", "write them into the function")
        _check_function(self.function)

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Return φ(x)."""
        return np.asarray(self.function(np.asarray(x, dtype=np.float64)), dtype=np.float64)

    @property
    def path(self) -> str:
        """Import path of the function as ``module:qualname``, or empty."""
        return path_of(self.function)

    def _dual(self, v1: FloatArray, v2: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        return quadrature.dual(self, self.order, v1, v2, c, smooth=False)


@dataclasses.dataclass(frozen=True)
class DeclaredMix:
    """A user's function of several arrays, with its declared properties; build one with `declared`.

    Attributes
    ----------
    function : callable
        φ of arrays that broadcast against each other, such as vectors and scores.
    """

    name: str
    order: int
    bounded: bool
    function: Callable[..., FloatArray]

    def __post_init__(self) -> None:
        _check_properties(self.name, self.order, self.bounded)

    def __call__(self, *arrays: FloatArray) -> FloatArray:
        """Return φ of the arrays."""
        return self.function(*arrays)

    @property
    def path(self) -> str:
        """Import path of the function as ``module:qualname``, or empty."""
        return path_of(self.function)


@overload
def declared(function: Function, *, order: int, bounded: bool, name: str | None = None) -> DeclaredFunction: ...


@overload
def declared(
    function: Callable[..., FloatArray], *, order: int, bounded: bool, name: str | None = None
) -> DeclaredMix: ...


def declared(
    function: Callable[..., FloatArray], *, order: int, bounded: bool, name: str | None = None
) -> DeclaredFunction | DeclaredMix:
    """Return a user's function as a nonlinearity, with declared order and boundedness.

    Both declarations are trusted, not verified. A larger order or ``bounded=False`` is always safe. A function of
    several arrays becomes a `DeclaredMix`.

    Parameters
    ----------
    function : callable
        φ, a vectorised function that maps an array entry by entry, in double precision. It may also take several
        arrays, which broadcast against each other.
    order : int
        Pseudo-Lipschitz order of φ, from 1 to 64.
    bounded : bool
        Whether φ is bounded.
    name : str, optional
        Default: the function's own name.

    Returns
    -------
    DeclaredFunction or DeclaredMix
        The `dual` of a function of one array uses quadrature, with an error estimate.

    Raises
    ------
    InputError
        If a property is invalid, or a function of one array is not vectorised, not finite up to 256, or mixes
        coordinates. Functions of several arrays are checked when a program uses them, and only for their shape and
        for mixing coordinates.

    Examples
    --------
    >>> declared(np.arctan, order=1, bounded=True).path, declared(np.hypot, order=1, bounded=False).path
    ('numpy:arctan', 'numpy:hypot')
    """
    if not callable(function):
        refuse("function", function, "cannot be called", _VECTORISE)
    known = short_name(function) if name is None else name
    if _takes_several(function):
        return DeclaredMix(known, order, bounded, function)
    return DeclaredFunction(known, (), order, bounded, function)


def _takes_several(function: Callable[..., FloatArray]) -> bool:
    """Return whether a function needs more than one array."""
    if isinstance(function, np.ufunc):
        return function.nin > 1
    try:
        parameters = inspect.signature(getattr(function, "pyfunc", function)).parameters.values()  # numpy.vectorize
    except ValueError:  # a built-in function without a signature
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    return len(needed) > 1


def _check_properties(name: str, order: int, bounded: bool) -> None:
    if not name or not isinstance(name, str):
        refuse("name", name, "must be text that is not empty", 'pass text, e.g. name="swish"')
    number = check_integer("order", order, 1, "pass the pseudo-Lipschitz order, e.g. order=1")
    if number > LARGEST_ORDER:
        refuse("order", number, "is too large for double precision", f"pass at most {LARGEST_ORDER}")
    if not isinstance(bounded, bool):
        refuse("bounded", bounded, "must be true or false", "pass True if φ is bounded, else False")


def _check_function(function: Function) -> None:
    """Raise `InputError` unless the function is finite and coordinatewise."""
    x = np.linspace(-_RANGE, _RANGE, 2049)
    values = _call(function, x)
    if not np.all(np.isfinite(values)):
        where = float(x[np.flatnonzero(~np.isfinite(values))[0]])
        remedy = "pass a function that is finite for |x| ≤ 256, or clip its argument"
        refuse("function", function, f"is not finite at x = {where!r}", remedy)
    # Values must not depend on order, shape or the other coordinates.
    rows = _call(function, x[:0:-1].reshape(8, -1)).ravel()[::-1]
    alone = _call(function, x[1024:1025])
    scale = np.abs(values).max()
    if np.any(np.abs(rows - values[1:]) > 1e-9 * scale) or abs(float(alone[0]) - values[1024]) > 1e-9 * scale:
        remedy = "pass a function of one coordinate, without randomness"
        refuse("function", function, "gives values that depend on the other coordinates or vary between calls", remedy)


def _call(function: Function, x: FloatArray) -> FloatArray:
    with np.errstate(all="ignore"):
        try:
            result = np.asarray(function(x.copy()))
        except Exception as error:
            refuse("function", function, f"raised {type(error).__name__} for an array: {error}", _VECTORISE)
    if result.shape != x.shape:
        refuse("function", function, f"returned shape {result.shape} for shape {x.shape}", _VECTORISE)
    if result.dtype.kind not in "biuf":
        refuse("function", function, f"returned {result.dtype}, not real numbers", "return an array of floats")
    return result.astype(np.float64)
