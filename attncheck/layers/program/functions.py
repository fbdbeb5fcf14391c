"""Coordinatewise functions of a program's lines, and their names."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError

Coordinatewise = Callable[..., FloatArray]


class StackedFunction(ABC):
    """A coordinatewise function of stacked vectors and scores."""

    @abstractmethod
    def __call__(self, vectors: FloatArray, scores: FloatArray) -> FloatArray:
        """Map vectors (draws, m, coordinates) and scores (draws, r) to (draws, coordinates)."""


@dataclasses.dataclass(frozen=True)
class PerArgumentFunction(StackedFunction):
    """A function that takes one array (draws, coordinates) per vector, followed by one array (draws, 1) per score."""

    function: Coordinatewise

    def __call__(self, vectors: FloatArray, scores: FloatArray) -> FloatArray:
        """Unstack the arrays and call the function."""
        columns = (scores[:, k : k + 1] for k in range(scores.shape[1]))
        value = self.function(*(vectors[:, k] for k in range(vectors.shape[1])), *columns)
        return np.asarray(value, dtype=np.float64)

    def __str__(self) -> str:
        return name_of(self.function)


@dataclasses.dataclass(frozen=True)
class LinearCombination:
    """Linear combination Σ_i c_i h^i of vectors."""

    coefficients: tuple[float, ...]

    def __call__(self, *vectors: FloatArray) -> FloatArray:
        """Return Σ_i c_i h^i."""
        terms = (c * v for c, v in zip(self.coefficients, vectors, strict=True))
        return sum(terms, start=np.zeros(1))

    def __str__(self) -> str:
        return f"linear({', '.join(f'{c:g}' for c in self.coefficients)})"


def tried(function: Coordinatewise, arguments: list[FloatArray], shape: tuple[int, ...]) -> None:
    """Call a function on trial `arguments`, to find out whether it is coordinatewise.

    Raises `InputError` if the function fails, returns an array of another shape than `shape`, or mixes coordinates.
    """
    remedy = "write it coordinatewise in NumPy; it takes one array per vector, then per score, and must not change them"
    try:
        with np.errstate(all="ignore"):
            values = np.asarray(function(*arguments))
            first = np.asarray(function(*(array[:, :1] for array in arguments)))
    except Exception as error:
        problem = f"cannot be called with {len(arguments)} arrays ({type(error).__name__}: {error})"
        raise InputError(f"function={name_of(function)}: {' '.join(problem.split())}; {remedy}") from error
    if values.shape != shape:
        raise InputError(f"function={name_of(function)}: returned shape {values.shape}, not {shape}; {remedy}")
    # Allow for rounding: NumPy's summation order may depend on the shape, and functions may use single precision.
    if not np.allclose(values[:, :1], first, rtol=1e-6, atol=1e-9, equal_nan=True):
        raise InputError(f"function={name_of(function)}: gives values that depend on the other coordinates; {remedy}")


def name_of(function: Any) -> str:
    """Return a function's name with parameters, e.g. clip(100)."""
    name = getattr(function, "__name__", None) or getattr(function, "name", None)
    if not name:
        name = re.sub(r" at 0x[0-9A-Fa-f]+", "", str(function))  # drop the memory address
    parameters = ", ".join(f"{p:g}" for p in getattr(function, "parameters", ()))
    return f"{name}({parameters})" if parameters else str(name)
