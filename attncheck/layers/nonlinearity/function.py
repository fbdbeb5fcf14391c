"""`Nonlinearity`: a known function φ with the properties that the theorem needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_choice, check_number, refuse
from attncheck.layers.nonlinearity import duals, quadrature
from attncheck.layers.nonlinearity.covariances import check_covariances

Parameters = tuple[float, ...]
Check = Callable[[str, Any], float]

LARGEST_ORDER: Final = 64
"""Largest order d for which |x|^d fits double precision at Gaussian arguments."""


def positive(field: str, value: Any) -> float:
    """Return a parameter as a float if 0 < `value` ≤ 1e6, or raise `InputError`."""
    return check_number(field, value, "pass a positive number, e.g. 1.0", above=0.0, maximum=1e6)


def any_positive(field: str, value: Any) -> float:
    """Return a parameter as a float if it is finite and positive, or raise `InputError`."""
    return check_number(field, value, "pass a positive bound, e.g. 100.0", above=0.0)


@dataclasses.dataclass(frozen=True)
class FunctionFamily:
    """Family of Lipschitz nonlinearities φ with the same formula.

    Attributes
    ----------
    function : callable
        φ of an array and the parameters.
    dual : callable or None
        Closed form of E[φ(Z₁)φ(Z₂)]. None: the expectation is computed by quadrature, and φ must be smooth.
    bounded : bool
    parameters : mapping of str to callable
        Validator of each parameter, by name.
    """

    function: Callable[[FloatArray, Parameters], FloatArray]
    dual: duals.Dual | None
    bounded: bool
    parameters: Mapping[str, Check] = dataclasses.field(default_factory=dict)


FAMILIES: Final[Mapping[str, FunctionFamily]] = {
    "identity": FunctionFamily(lambda x, _: x.copy(), duals.identity, bounded=False),
    "relu": FunctionFamily(lambda x, _: np.maximum(x, 0.0), duals.relu, bounded=False),
    "gelu": FunctionFamily(lambda x, _: np.asarray(x * special.ndtr(x)), duals.gelu, bounded=False),
    "erf": FunctionFamily(lambda x, _: np.asarray(special.erf(x)), duals.erf, bounded=True),
    "clip": FunctionFamily(
        lambda x, p: np.clip(x, -p[0], p[0]), duals.clip, bounded=True, parameters={"bound": any_positive}
    ),
    "sin": FunctionFamily(lambda x, p: np.sin(p[0] * x), duals.sin, bounded=True, parameters={"frequency": positive}),
    "tanh": FunctionFamily(lambda x, _: np.tanh(x), None, bounded=True),
    "sigmoid": FunctionFamily(lambda x, _: np.asarray(special.expit(x)), None, bounded=True),
}


@dataclasses.dataclass(frozen=True)
class Nonlinearity:
    """A coordinatewise function φ, with the properties that the theorem needs.

    Build one with a constructor of this package, e.g. `clip` or `relu`.

    Parameters
    ----------
    name : str
        Key in the table of known functions.
    parameters : tuple of float
        E.g. the bound of clip.
    order : int
        Pseudo-Lipschitz order d: ``|φ(x) - φ(y)| ≤ c |x - y| (1 + |x|^(d-1) + |y|^(d-1))`` for some c.
    bounded : bool
        Whether φ is bounded, as Assumption 1 requires of score inputs.

    Raises
    ------
    InputError
        If the name is unknown, or the other fields do not match the function of this name.

    Examples
    --------
    >>> from attncheck.layers.nonlinearity import clip, relu
    >>> phi = clip(1.0)
    >>> phi(np.array([-3.0, 0.5]))
    array([-1. ,  0.5])
    >>> value, error = relu().dual(1.0, 1.0, 0.0)
    >>> round(float(value) * 2 * np.pi, 12), bool(error < 1e-14)
    (1.0, True)
    """

    name: str
    parameters: tuple[float, ...]
    order: int
    bounded: bool

    def __post_init__(self) -> None:
        check_choice("nonlinearity.name", self.name, tuple(FAMILIES))
        family = FAMILIES[self.name]
        if len(self.parameters) != len(family.parameters):
            remedy = f"{self.name} takes {len(family.parameters)}; use attncheck.layers.nonlinearity.{self.name}()"
            refuse("nonlinearity.parameters", self.parameters, f"has length {len(self.parameters)}", remedy)
        checks = zip(family.parameters.items(), self.parameters, strict=True)
        checked = tuple(check(field, value) for (field, check), value in checks)
        object.__setattr__(self, "parameters", checked)
        for field, expected in (("order", 1), ("bounded", family.bounded)):
            actual = getattr(self, field)
            if actual != expected:
                refuse(f"nonlinearity.{field}", actual, f"is wrong for {self.name}", f"pass {expected}")

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Return φ(x)."""
        return FAMILIES[self.name].function(np.asarray(x, dtype=np.float64), self.parameters)

    def dual(self, var1: ArrayLike, var2: ArrayLike, cov: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return E[φ(Z₁)φ(Z₂)] for zero-mean Gaussian (Z₁, Z₂), and a bound on the error.

        This is step (iii) of Definition 1. Zero variance and perfect correlation are allowed.

        Parameters
        ----------
        var1, var2 : array_like
            Variances of Z₁ and Z₂.
        cov : array_like
            Their covariance.

        Returns
        -------
        value, error : ndarray
            `error` is a rounding bound for closed forms, an estimate for quadrature.

        Raises
        ------
        InputError
            If an entry is not finite, a variance is negative, or ``|cov| > √(var1·var2)``.
        """
        return self._dual(*check_covariances(var1, var2, cov))

    def _dual(self, v1: FloatArray, v2: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        closed_form = FAMILIES[self.name].dual
        if closed_form is not None:
            return closed_form(v1, v2, c, self.parameters)
        return quadrature.dual(self, self.order, v1, v2, c)
