"""Table of the known functions φ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_number, check_whole, refuse
from attncheck.layers.nonlinearity import duals

Parameters = tuple[float, ...]
Check = Callable[[str, Any], float]

LARGEST_ORDER: Final = 64
"""Largest order d for which |x|^d fits double precision at Gaussian arguments."""


def positive(field: str, value: Any) -> float:
    """Validate a parameter 0 < value ≤ 1e6."""
    return check_number(field, value, "pass a positive number, e.g. 1.0", above=0.0, maximum=1e6)


def any_positive(field: str, value: Any) -> float:
    """Validate a parameter value > 0."""
    return check_number(field, value, "pass a positive bound, e.g. 100.0", above=0.0)


def slope(field: str, value: Any) -> float:
    """Validate a slope, |value| ≤ 1000."""
    return check_number(field, value, "pass a slope, e.g. 0.01", minimum=-1e3, maximum=1e3)


def degree(field: str, value: Any) -> float:
    """Validate a degree, an integer from 1 to `LARGEST_ORDER`."""
    remedy = f"pass a whole number from 1 to {LARGEST_ORDER}"
    whole = value if not isinstance(value, float) or not value.is_integer() else int(value)
    whole = check_whole(field, whole, 1, remedy)
    if whole > LARGEST_ORDER:
        refuse(field, value, "is too large for double precision", remedy)
    return float(whole)


@dataclasses.dataclass(frozen=True)
class FunctionFamily:
    """Family of nonlinearities φ with the same formula.

    Attributes
    ----------
    function : callable
        φ of an array and the parameters.
    dual : callable or None
        Closed form of E[φ(Z₁)φ(Z₂)], or None for quadrature of a smooth φ.
    bounded : bool
    order : callable
        Pseudo-Lipschitz order from the parameters.
    parameters : mapping of str to callable
        Validators.
    """

    function: Callable[[FloatArray, Parameters], FloatArray]
    dual: duals.Dual | None
    bounded: bool
    order: Callable[[Parameters], int] = lambda _: 1
    parameters: Mapping[str, Check] = dataclasses.field(default_factory=dict)


def _leaky_relu(x: FloatArray, parameters: Parameters) -> FloatArray:
    return np.where(x > 0, x, parameters[0] * x)


def _gaussian(x: FloatArray, parameters: Parameters) -> FloatArray:
    # The square may overflow, and the value is then correctly 0.
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-0.5 * (x / parameters[0]) ** 2))


FAMILIES: Final[Mapping[str, FunctionFamily]] = {
    "identity": FunctionFamily(lambda x, _: x.copy(), duals.identity, bounded=False),
    "relu": FunctionFamily(lambda x, _: np.maximum(x, 0.0), duals.relu, bounded=False),
    "gelu": FunctionFamily(lambda x, _: np.asarray(x * special.ndtr(x)), duals.gelu, bounded=False),
    "leaky_relu": FunctionFamily(_leaky_relu, duals.leaky_relu, bounded=False, parameters={"slope": slope}),
    "monomial": FunctionFamily(
        lambda x, p: np.asarray(x ** int(p[0])),
        duals.monomial,
        bounded=False,
        order=lambda p: int(p[0]),
        parameters={"degree": degree},
    ),
    "erf": FunctionFamily(lambda x, _: np.asarray(special.erf(x)), duals.erf, bounded=True),
    "clip": FunctionFamily(
        lambda x, p: np.clip(x, -p[0], p[0]), duals.clip, bounded=True, parameters={"bound": any_positive}
    ),
    "sin": FunctionFamily(lambda x, p: np.sin(p[0] * x), duals.sin, bounded=True, parameters={"frequency": positive}),
    "cos": FunctionFamily(lambda x, p: np.cos(p[0] * x), duals.cos, bounded=True, parameters={"frequency": positive}),
    "gaussian": FunctionFamily(_gaussian, duals.gaussian, bounded=True, parameters={"scale": any_positive}),
    "tanh": FunctionFamily(lambda x, _: np.tanh(x), None, bounded=True),
    "sigmoid": FunctionFamily(lambda x, _: np.asarray(special.expit(x)), None, bounded=True),
}
