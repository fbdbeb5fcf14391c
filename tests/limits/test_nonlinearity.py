"""Nonlinearities: duals against closed forms and the trapezoidal rule; declared functions."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.layers import nonlinearity as nl

COVARIANCES = [(1.0, 1.0, 0.97), (1.0, 2.3, 0.3), (0.2, 4.0, -0.7), (30.0, 30.0, 1.0), (0.5, 2.0, -1.0)]


@pytest.mark.parametrize("phi", [nl.tanh(), nl.sigmoid(), nl.gelu(), nl.erf(), nl.sin(5.0)], ids=str)
@pytest.mark.parametrize(("v1", "v2", "rho"), COVARIANCES)
def test_smooth_duals_are_the_integral(phi: nl.Nonlinearity, v1: float, v2: float, rho: float) -> None:
    """By the trapezoidal rule, which errs by rounding alone."""
    value, error = phi.dual(v1, v2, rho * np.sqrt(v1 * v2))
    z = np.arange(-9.0, 9.0, 0.03)
    density = 0.03 * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    other = phi(np.sqrt(v2) * (rho * z[:, None] + np.sqrt((1 - rho) * (1 + rho)) * z))
    expected = float((density * phi(np.sqrt(v1) * z)) @ other @ density)
    assert abs(float(value) - expected) <= float(error) + 1e-12 * abs(expected) + 1e-15
    assert float(error) <= 1e-12 * max(np.sqrt(v1 * v2), abs(expected))


@pytest.mark.parametrize(
    "phi", [nl.identity(), nl.gelu(), nl.erf(), nl.relu(), nl.tanh(), nl.sigmoid(), nl.clip(1.0)], ids=str
)
def test_dual_broadcasts_and_no_variance_is_a_constant(phi: nl.Nonlinearity) -> None:
    value, error = phi.dual([0.0, 0.0, 1.0], [0.0, 2.0, 0.0], 0.0)
    np.testing.assert_allclose(value, phi([0.0] * 3) ** 2, rtol=1e-13, atol=1e-14)  # its mean is φ(0), or φ(0) is 0
    assert np.all(error <= 1e-14)
    value, error = phi.dual([[1.0], [4.0]], [1.0, 2.0, 3.0], 0.25)
    expected = [[float(phi.dual(v, w, 0.25)[0]) for w in (1.0, 2.0, 3.0)] for v in (1.0, 4.0)]
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert error.shape == (2, 3)


# Declarations about a function are trusted

Function = Callable[[FloatArray], FloatArray]


def swish(x: FloatArray) -> FloatArray:
    return np.asarray(x * special.expit(x))


# A kink far out, oscillations, overflow inside, and values near the ends of double precision.
TRUE: dict[str, tuple[Function, int, bool]] = {
    "kink far out": (lambda x: np.abs(x - 12345.678), 1, False),
    "x² sin 1/x": (lambda x: x * x * np.sin(1 / np.where(x == 0, 1.0, x)), 2, False),
    "softplus that overflows": (lambda x: np.log1p(np.exp(x)), 1, False),
    "fast chirp": (lambda x: np.sin(x**8), 8, True),
    "x^64": (lambda x: x**64, 64, False),
    "zero": (lambda x: 0.0 * x, 1, True),
    "huge": (lambda x: 1.7e308 * np.tanh(x), 1, True),
    "single precision": (lambda x: np.tanh(x.astype(np.float32)).astype(np.float64), 1, True),
    "not by NumPy": (np.vectorize(lambda x: math.exp(-x) if x > 0 else math.exp(x)), 1, True),
}


@pytest.mark.parametrize("name", TRUE)
def test_a_true_declaration_is_believed(name: str) -> None:
    function, order, bounded = TRUE[name]
    phi = nl.declared(function, order=order, bounded=bounded, name=name)
    assert (phi.name, phi.order, phi.bounded) == (name, order, bounded)


@pytest.mark.parametrize(
    ("function", "path", "name"),
    [
        (np.tanh, "numpy:tanh", "tanh"),
        (special.erf, "scipy.special:erf", "erf"),
        (swish, f"{__name__}:swish", "swish"),
        (lambda x: x, "", "<lambda>"),
        (np.vectorize(math.tanh), "", ""),
    ],
)
def test_paths_and_names_are_those_of_the_function(function: Function, path: str, name: str) -> None:
    phi: Any = nl.declared(function, order=1, bounded=False)
    assert phi.path == path
    assert phi.name.endswith(name)


def test_declared_functions_are_values() -> None:
    phi = nl.declared(np.arctan, order=1, bounded=True)
    assert phi == nl.declared(np.arctan, order=1, bounded=True) == pickle.loads(pickle.dumps(phi))
    assert phi != nl.declared(np.tanh, order=1, bounded=True)
    np.testing.assert_array_equal(phi([[0.0, 1.0]]), np.arctan([[0.0, 1.0]]))


Dual = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def of_absolute_value(v1: FloatArray, v2: FloatArray, c: FloatArray) -> FloatArray:
    """The four quadrants of (Z₁, Z₂), by symmetry two."""
    return 2.0 * (nl.relu().dual(v1, v2, c)[0] + nl.relu().dual(v1, v2, -c)[0])


def of_power(degree: int) -> Dual:
    """Isserlis' sum over pairings, k of them across Z₁ and Z₂."""

    def dual(v1: FloatArray, v2: FloatArray, c: FloatArray) -> FloatArray:
        total = np.zeros_like(c)
        for across in range(degree % 2, degree + 1, 2):
            within = (degree - across) // 2
            pairings = math.factorial(2 * within) // (2**within * math.factorial(within))
            count = math.comb(degree, across) ** 2 * math.factorial(across) * pairings**2
            total = total + count * v1**within * v2**within * c**across
        return total

    return dual


def of_gaussian(v1: FloatArray, v2: FloatArray, c: FloatArray) -> FloatArray:
    """Of exp(-x²/(2 s²)), s = 0.2: det(I + Σ/s²)^(-1/2)."""
    s = 0.2**2
    return np.asarray(s / np.sqrt((s + v1) * (s + v2) - c * c))


def known(phi: nl.Nonlinearity) -> Dual:
    return lambda v1, v2, c: phi.dual(v1, v2, c)[0]


#: Function, order, whether it is bounded, and closed form, by name.
KNOWN: dict[str, tuple[Function, int, bool, Dual]] = {
    "absolute value": (np.abs, 1, False, of_absolute_value),
    "relu": (lambda x: np.maximum(x, 0.0), 1, False, known(nl.relu())),
    "clip(0.7)": (lambda x: np.clip(x, -0.7, 0.7), 1, True, known(nl.clip(0.7))),
    "clip(3)": (lambda x: np.clip(x, -3.0, 3.0), 1, True, known(nl.clip(3.0))),
    "clip(0.01)": (lambda x: np.clip(x, -0.01, 0.01), 1, True, known(nl.clip(0.01))),
    "erf": (special.erf, 1, True, known(nl.erf())),
    "gaussian": (lambda x: np.exp(-0.5 * (x / 0.2) ** 2), 1, True, of_gaussian),
    "sin(20)": (lambda x: np.sin(20 * x), 1, True, known(nl.sin(20.0))),
    "x^3": (lambda x: x**3, 3, False, of_power(3)),
    "x^10": (lambda x: x**10, 10, False, of_power(10)),
}
#: Rounding of closed forms, relative to the value at perfect correlation.
_ROUNDING = 1e-13
EACH_KNOWN = pytest.mark.parametrize("name", KNOWN)


@EACH_KNOWN
@settings(max_examples=10)
@given(v1=st.floats(0.1, 10.0), v2=st.floats(0.1, 10.0), rho=st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-1.0, 1.0))
def test_the_error_of_quadrature_is_honest(name: str, v1: float, v2: float, rho: float) -> None:
    function, order, bounded, dual = KNOWN[name]
    first, second, c = np.array(v1), np.array(v2), np.array(rho * math.sqrt(v1 * v2))
    value, error = nl.declared(function, order=order, bounded=bounded).dual(first, second, c)
    rounding = _ROUNDING * float(dual(first, first, first) + dual(second, second, second))
    assert abs(float(value) - float(dual(first, second, c))) <= float(error) + rounding


@EACH_KNOWN
def test_the_error_of_quadrature_is_small_and_allows_for_kinks_that_nearly_coincide(name: str) -> None:
    function, order, bounded, dual = KNOWN[name]
    phi = nl.declared(function, order=order, bounded=bounded)
    # Correlations near ±1, of both signs in turn.
    c = np.array(
        [sign * math.sqrt(1 - gap**2) for sign, gap in zip([1, -1] * 4, np.geomspace(1e-7, 0.5, 8), strict=True)]
    )
    one = np.ones(8)
    (value, error), right = phi.dual(one, one, c), dual(one, one, c)
    largest = float(dual(one, one, one)[0])
    assert np.all(np.abs(value - right) <= error + _ROUNDING * largest)
    _, error = phi.dual(1.0, [1.0, 2.0], [1.0, -0.5])
    assert np.all(error <= 1e-3 * largest)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (np.hypot, nl.DeclaredMix),
        (lambda vector, *scores: vector, nl.DeclaredMix),
        (np.vectorize(lambda one, two: one * two), nl.DeclaredMix),
        (np.sin, nl.DeclaredFunction),
        (np.vectorize(math.sin), nl.DeclaredFunction),
        (lambda x, slope=0.1: slope * x, nl.DeclaredFunction),
    ],
)
def test_functions_of_several_arrays_are_mixes(function: Any, kind: Any) -> None:
    phi: Any = nl.declared(function, order=1, bounded=False)
    assert type(phi) is kind
    arrays = (np.array([0.3, -2.0]),) * (2 if kind is nl.DeclaredMix else 1)
    np.testing.assert_array_equal(phi(*arrays), function(*arrays))
