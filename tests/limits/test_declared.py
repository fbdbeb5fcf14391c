"""Declarations about a function are trusted; unusable functions are refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special

from attncheck._lib.errors import InputError
from attncheck.layers import nonlinearity as nl
from attncheck.layers.program import Program
from attncheck.layers.program.coverage import CoverageKind
from attncheck.theory.limits.programs import limit_of_program

FloatArray = NDArray[np.float64]
Function = Callable[[FloatArray], FloatArray]


def swish(x: FloatArray) -> FloatArray:
    return np.asarray(x * special.expit(x))


def near_one(x: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.abs(x - 1.3)))


TRUE: dict[str, tuple[Function, int, bool]] = {
    "tanh": (np.tanh, 1, True),
    "tanh, more than needed": (np.tanh, 3, False),
    "wide clip": (lambda x: np.clip(x, -100.0, 100.0), 1, True),
    "narrow clip": (lambda x: np.clip(x, -1e-30, 1e-30), 1, True),
    "relu": (lambda x: np.maximum(x, 0.0), 1, False),
    "absolute value": (np.abs, 1, False),
    "kink far out": (lambda x: np.abs(x - 12345.678), 1, False),
    "triangles": (lambda x: np.abs(x - np.round(x)), 1, True),
    "fast sine": (lambda x: 1000.0 * np.sin(50.0 * x), 1, True),
    "faster sine": (lambda x: np.sin(1e6 * x), 1, True),
    "two sines": (lambda x: np.sin(x) + np.sin(2**0.5 * x), 1, True),
    "fast and small": (lambda x: x + 1e-8 * np.sin(1e9 * x), 1, False),
    "x sin x": (lambda x: x * np.sin(x), 2, False),
    "chirp": (lambda x: np.sin(x * x), 2, True),
    "fast chirp": (lambda x: np.sin(x**8), 8, True),
    "x² sin 1/x": (lambda x: x * x * np.sin(1 / np.where(x == 0, 1.0, x)), 2, False),
    "softplus": (lambda x: np.logaddexp(0.0, x), 1, False),
    "softplus that overflows": (lambda x: np.log1p(np.exp(x)), 1, False),
    "gelu": (lambda x: x * special.ndtr(x), 1, False),
    "gelu by tanh": (lambda x: 0.5 * x * (1 + np.tanh(0.8 * (x + 0.044 * x**3))), 1, False),
    "silu that overflows": (lambda x: x / (1 + np.exp(-x)), 1, False),
    "sigmoid that overflows": (lambda x: np.exp(x) / (1 + np.exp(x)), 1, True),
    "log cosh": (lambda x: np.log(np.cosh(x / 50)), 1, False),
    "steep erf": (lambda x: special.erf(1e3 * x), 1, True),
    "steep erf elsewhere": (lambda x: special.erf(1e8 * (x - 0.3)), 1, True),
    "cube": (lambda x: x**3, 3, False),
    "x³ tanh x": (lambda x: x**3 * np.tanh(x), 4, False),
    "x^64": (lambda x: x**64, 64, False),
    "polynomial": (lambda x: (x - 10.0) ** 5, 5, False),
    "late bend": (lambda x: x * x * np.tanh(x / 1e3), 2, False),
    "late bound": (lambda x: np.tanh(x / 1e6), 1, True),
    "slow bound": (lambda x: x / (1 + np.abs(x)), 1, True),
    "constant": (lambda x: 0.0 * x + 3.0, 1, True),
    "zero": (lambda x: 0.0 * x, 1, True),
    "tiny": (lambda x: 1e-30 * np.tanh(x), 1, True),
    "huge": (lambda x: 1.7e308 * np.tanh(x), 1, True),
    "lost digits": (lambda x: (x + 1e6) - 1e6, 1, False),
    "single precision": (lambda x: np.tanh(x.astype(np.float32)).astype(np.float64), 1, True),
    "narrow bump": (lambda x: np.exp(-1e6 * x * x), 1, True),
    "not by NumPy": (np.vectorize(lambda x: math.exp(-x) if x > 0 else math.exp(x)), 1, True),
}


@pytest.mark.parametrize("name", TRUE)
def test_a_true_declaration_is_believed(name: str) -> None:
    function, order, bounded = TRUE[name]
    phi = nl.declared(function, order=order, bounded=bounded, name=name)
    assert (phi.name, phi.order, phi.bounded) == (name, order, bounded)


UNUSABLE: dict[str, tuple[object, str]] = {
    "one number": (math.tanh, "raised TypeError"),
    "sum": (np.sum, "returned shape"),
    "softmax": (lambda x: special.softmax(x), "depend on the other coordinates"),
    "centred": (lambda x: x - x.mean(), "depend on the other coordinates"),
    "running": (lambda x: np.cumsum(x).reshape(x.shape), "depend on the other coordinates"),
    "logarithm": (np.log, "is not finite at x = -256.0"),
    "pole": (lambda x: 1 / x, "is not finite at x = 0.0"),
    "overflow": (lambda x: np.exp(x * x), "is not finite"),
    "complex": (lambda x: x + 1j, "returned complex128"),
    "text": (lambda x: np.full(x.shape, "one"), "returned <U3"),
    "nothing": (None, "cannot be called"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_functions_are_refused(name: str) -> None:
    function, problem = UNUSABLE[name]
    with pytest.raises(InputError, match=f"^function=.*{problem}"):
        nl.declared(function, order=1, bounded=False)  # type: ignore[arg-type]  # what a person may pass


@pytest.mark.parametrize("order", [0, -1, 1.5, np.nan, True, "one", 65])
def test_bad_orders_are_refused(order: object) -> None:
    with pytest.raises(InputError, match=r"^order="):
        nl.declared(np.tanh, order=order, bounded=True)  # type: ignore[arg-type]  # what a person may pass


def test_other_bad_fields_are_refused() -> None:
    with pytest.raises(InputError, match=r"^bounded=1"):
        nl.declared(np.tanh, order=1, bounded=1)  # type: ignore[arg-type]  # what a person may pass
    with pytest.raises(InputError, match=r"^name=''"):
        nl.declared(np.tanh, order=1, bounded=True, name="")
    with pytest.raises(InputError, match=r"^parameters="):
        nl.DeclaredFunction("tanh", (1.0,), 1, True, np.tanh)


def test_paths() -> None:
    assert nl.declared(np.tanh, order=1, bounded=True).path == "numpy:tanh"
    assert nl.declared(special.erf, order=1, bounded=True).path == "scipy.special:erf"
    assert nl.declared(swish, order=1, bounded=False).path == f"{__name__}:swish"
    assert nl.declared(lambda x: x, order=1, bounded=False).path == ""
    assert nl.declared(np.vectorize(math.tanh), order=1, bounded=True).path == ""


def test_names() -> None:
    assert nl.declared(np.tanh, order=1, bounded=True).name == "tanh"
    assert nl.declared(swish, order=1, bounded=False).name == "swish"
    assert nl.declared(lambda x: x, order=1, bounded=False).name.endswith("<lambda>")
    assert nl.declared(np.tanh, order=1, bounded=True, name="squash").name == "squash"


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


@pytest.mark.parametrize(("function", "known"), KNOWN, ids=[f"{known.name}{known.parameters}" for _, known in KNOWN])
@settings(max_examples=10)
@given(v1=st.floats(0.1, 10.0), v2=st.floats(0.1, 10.0), rho=st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-1.0, 1.0))
def test_the_error_of_quadrature_is_honest(
    function: Function, known: nl.Nonlinearity, v1: float, v2: float, rho: float
) -> None:
    phi = nl.declared(function, order=known.order, bounded=known.bounded)
    c = rho * math.sqrt(v1 * v2)
    (value, error), (right, rounding) = phi.dual(v1, v2, c), known.dual(v1, v2, c)
    assert abs(float(value) - float(right)) <= float(error) + float(rounding)


@pytest.mark.parametrize(("function", "known"), KNOWN, ids=[f"{known.name}{known.parameters}" for _, known in KNOWN])
def test_kinks_that_nearly_coincide_are_in_the_error(function: Function, known: nl.Nonlinearity) -> None:
    phi = nl.declared(function, order=known.order, bounded=known.bounded)
    # Of both signs in turn.
    c = (-1.0) ** np.arange(8) * np.sqrt(1 - np.geomspace(1e-7, 0.5, 8) ** 2)
    (value, error), (right, rounding) = phi.dual(1.0, 1.0, c), known.dual(1.0, 1.0, c)
    assert np.all(np.abs(value - right) <= error + rounding)


@pytest.mark.parametrize(("function", "known"), KNOWN, ids=[f"{known.name}{known.parameters}" for _, known in KNOWN])
def test_the_error_of_quadrature_is_small(function: Function, known: nl.Nonlinearity) -> None:
    phi = nl.declared(function, order=known.order, bounded=known.bounded)
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
