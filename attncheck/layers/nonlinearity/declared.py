"""User functions as nonlinearities, with declared order and boundedness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, refuse
from attncheck._lib.imports import path_of, short_name
from attncheck.layers.nonlinearity import quadrature
from attncheck.layers.nonlinearity.function import LARGEST_ORDER, Nonlinearity

Function = Callable[[FloatArray], FloatArray]

# Gaussian vectors stay within this bound.
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
        if not self.name:
            refuse("name", self.name, "must not be empty", 'pass text, e.g. name="swish"')
        order = check_integer("order", self.order, 1, "pass the pseudo-Lipschitz order, e.g. order=1")
        if order > LARGEST_ORDER:
            refuse("order", order, "is too large for double precision", f"pass at most {LARGEST_ORDER}")
        if not isinstance(self.bounded, bool):
            refuse("bounded", self.bounded, "must be true or false", "pass True if φ is bounded, else False")
        if self.parameters:
            refuse("parameters", self.parameters, "is for built-in functions only", "write them into the function")
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


def declared(function: Function, *, order: int, bounded: bool, name: str | None = None) -> DeclaredFunction:
    """Return any function as a nonlinearity, with its order and boundedness declared.

    Declarations are not verified. A larger order or ``bounded=False`` is always safe.

    Parameters
    ----------
    function : callable
        φ, vectorised: maps an array entry by entry, in double precision.
    order : int
        Pseudo-Lipschitz order of φ, from 1 to 64.
    bounded : bool
        Whether φ is bounded.
    name : str, optional
        Default: the function's own name.

    Returns
    -------
    DeclaredFunction
        Its `dual` uses quadrature, with an error estimate.

    Raises
    ------
    InputError
        If the function is not vectorised, not finite up to 256, or mixes coordinates.

    Examples
    --------
    >>> declared(np.arctan, order=1, bounded=True).path
    'numpy:arctan'
    """
    if not callable(function):
        refuse("function", function, "cannot be called", _VECTORISE)
    return DeclaredFunction(short_name(function) if name is None else name, (), order, bounded, function)


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
