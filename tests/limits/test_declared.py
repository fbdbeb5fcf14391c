"""Declarations about a function are trusted; unusable functions are refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.layers import nonlinearity as nl
from attncheck.layers.program import Program
from attncheck.layers.program.coverage import CoverageKind
from attncheck.theory.limits.programs import limit_of_program

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
    phi = nl.declared(function, order=1, bounded=False)
    assert phi.path == path
    assert phi.name.endswith(name)


def test_declared_functions_are_values() -> None:
    phi = nl.declared(np.arctan, order=1, bounded=True)
    assert phi == nl.declared(np.arctan, order=1, bounded=True)
    assert phi != nl.declared(np.tanh, order=1, bounded=True)
    assert pickle.loads(pickle.dumps(phi)) == phi
    np.testing.assert_array_equal(phi([[0.0, 1.0]]), np.arctan([[0.0, 1.0]]))


KNOWN: list[tuple[Function, nl.Nonlinearity]] = [
    (np.abs, nl.leaky_relu(-1.0)),
    (lambda x: np.maximum(x, 0.0), nl.relu()),
    (lambda x: np.clip(x, -0.7, 0.7), nl.clip(0.7)),
    (lambda x: np.clip(x, -0.01, 0.01), nl.clip(0.01)),
    (special.erf, nl.erf()),
    (lambda x: np.exp(-0.5 * (x / 0.2) ** 2), nl.gaussian(0.2)),
    (lambda x: np.sin(20 * x), nl.sin(20.0)),
    (lambda x: x**3, nl.monomial(3)),
    (lambda x: x**10, nl.monomial(10)),
]


EACH = pytest.mark.parametrize(
    ("function", "known"), KNOWN, ids=[f"{known.name}{known.parameters}" for _, known in KNOWN]
)


@EACH
@settings(max_examples=10)
@given(v1=st.floats(0.1, 10.0), v2=st.floats(0.1, 10.0), rho=st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-1.0, 1.0))
def test_the_error_of_quadrature_is_honest(
    function: Function, known: nl.Nonlinearity, v1: float, v2: float, rho: float
) -> None:
    phi = nl.declared(function, order=known.order, bounded=known.bounded)
    c = rho * math.sqrt(v1 * v2)
    (value, error), (right, rounding) = phi.dual(v1, v2, c), known.dual(v1, v2, c)
    assert abs(float(value) - float(right)) <= float(error) + float(rounding)


@EACH
def test_the_error_of_quadrature_is_small_and_allows_for_kinks_that_nearly_coincide(
    function: Function, known: nl.Nonlinearity
) -> None:
    phi = nl.declared(function, order=known.order, bounded=known.bounded)
    # Correlations near ±1, of both signs in turn.
    c = (-1.0) ** np.arange(8) * np.sqrt(1 - np.geomspace(1e-7, 0.5, 8) ** 2)
    (value, error), (right, rounding) = phi.dual(1.0, 1.0, c), known.dual(1.0, 1.0, c)
    assert np.all(np.abs(value - right) <= error + rounding)
    _, error = phi.dual(1.0, [1.0, 2.0], [1.0, -0.5])
    assert np.all(error <= 1e-3 * float(known.dual(1.0, 1.0, 1.0)[0]))


def test_declared_functions_in_programs() -> None:
    program = Program()
    W, Q, K = (program.weight(name) for name in "WQK")
    g = program.matmul(W, program.initial("h"))
    x = program.nonlin(nl.declared(special.erf, order=1, bounded=True), g)
    p = program.score(program.matmul(Q, x), program.matmul(K, x))
    assert program.coverage().of(p.name).statement == CoverageKind.SCORE
    closed = float(nl.erf().dual(1.0, 1.0, 1.0)[0]) ** 2
    assert limit_of_program(program).score_covariance[0, 0] == pytest.approx(closed, rel=1e-12)
    y = program.nonlin(nl.declared(swish, order=1, bounded=False), g)
    A, B = program.weight("A"), program.weight("B")
    q = program.score(program.matmul(A, y), program.matmul(B, y))
    assert program.coverage().of(q.name).statement == CoverageKind.UNBOUNDED
