"""Duals of nonlinearities: against integration split at the kinks, and closed forms against fifty digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck._lib.arrays import FloatArray
from attncheck.layers import nonlinearity as nl

COVARIANCES = [(1.0, 1.0, 0.97), (1.0, 2.3, 0.3), (0.2, 4.0, -0.7), (30.0, 30.0, 1.0), (0.5, 2.0, -1.0)]
# Those with closed forms are compared with fifty digits below, on all covariances.
FUNCTIONS = [
    (nl.relu(), (0.0,)),
    (nl.tanh(), ()),
    (nl.sigmoid(), ()),
    *((nl.clip(c), (-c, c)) for c in (0.01, 1.0, 3.0, 100.0)),
]
EACH = pytest.mark.parametrize(
    "phi",
    [nl.identity(), nl.gelu(), nl.erf(), *(f for f, _ in FUNCTIONS)],
    ids=str,
)


NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
EDGES = np.linspace(-9, 9, 13).tolist()


def panels(cuts: list[float]) -> tuple[FloatArray, FloatArray]:
    """Gauss–Legendre nodes and weights on [-9, 9], split at kinks."""
    edges = np.array(sorted({*EDGES, *(c for c in cuts if -9 < c < 9)}))
    half = np.diff(edges)[:, None] / 2
    return (half * (NODES + 1) + edges[:-1, None]).ravel(), (half * WEIGHTS).ravel()


def by_integration(phi: nl.Nonlinearity, kinks: tuple[float, ...], v1: float, v2: float, rho: float) -> float:
    total, sine = 0.0, np.sqrt((1 - rho) * (1 + rho))
    cuts = [k / np.sqrt(v1) for k in kinks if v1]
    if sine == 0:
        cuts += [rho * k / np.sqrt(v2) for k in kinks]
    for x, w in zip(*panels(cuts), strict=True):
        if sine == 0:
            inner = float(phi(np.sqrt(v2) * rho * x))
        else:
            y, u = panels([(k / np.sqrt(v2) - rho * x) / sine for k in kinks if v2])
            density = np.exp(-0.5 * y * y) / np.sqrt(2 * np.pi)
            inner = float(u * density @ phi(np.sqrt(v2) * (rho * x + sine * y)))
        total += w * np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi) * float(phi(np.sqrt(v1) * x)) * inner
    return total


@pytest.mark.sampled
@pytest.mark.parametrize(("phi", "kinks"), FUNCTIONS, ids=lambda f: str(f))
@pytest.mark.parametrize(("v1", "v2", "rho"), COVARIANCES)
def test_dual_is_the_integral(phi: nl.Nonlinearity, kinks: tuple[float, ...], v1: float, v2: float, rho: float) -> None:
    value, error = phi.dual(v1, v2, rho * np.sqrt(v1 * v2))
    expected = by_integration(phi, kinks, v1, v2, rho)
    assert abs(float(value) - expected) <= float(error) + 1e-12 * abs(expected) + 1e-15
    assert float(error) <= 1e-12 * max(np.sqrt(v1 * v2), abs(expected))


@EACH
def test_dual_broadcasts_and_no_variance_is_a_constant(phi: nl.Nonlinearity) -> None:
    value, error = phi.dual([0.0, 0.0, 1.0], [0.0, 2.0, 0.0], 0.0)
    means = [by_integration(phi, (0.0,), 0.0, v, 0.0) for v in (0.0, 2.0, 1.0)]
    np.testing.assert_allclose(value, means, rtol=1e-13, atol=1e-14)
    assert np.all(error <= 1e-14)
    value, error = phi.dual([[1.0], [4.0]], [1.0, 2.0, 3.0], 0.25)
    expected = [[float(phi.dual(v, w, 0.25)[0]) for w in (1.0, 2.0, 3.0)] for v in (1.0, 4.0)]
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert error.shape == (2, 3)


ONE, TWO = Decimal(1), Decimal(2)
# Sines of smaller covariances would cost the reference its digits.
CORRELATIONS = st.sampled_from([-1.0, 0.0, 1.0, 1 - 2.0**-53, 1e-9 - 1, 1e-9]) | st.floats(-1.0, 1.0).map(
    lambda rho: rho if abs(rho) > 1e-12 else 0.0
)
VARIANCES = st.sampled_from([0.0, 1.0, 1e-6, 1e6]) | st.floats(1e-6, 1e6)


def arctangent(t: Decimal) -> Decimal:
    for _ in range(6):
        t /= 1 + (1 + t * t).sqrt()
    terms = ((-1) ** k * t ** (2 * k + 1) / (2 * k + 1) for k in range(20))
    return 64 * sum(terms, start=Decimal(0))


def pi() -> Decimal:
    return 4 * arctangent(ONE)


def identity(v: Decimal, w: Decimal, c: Decimal) -> Decimal:
    return c


def relu(v: Decimal, w: Decimal, c: Decimal) -> Decimal:
    sine = max(v * w - c * c, Decimal(0)).sqrt()
    angle = pi() / 2 - (arctangent(c / sine) if sine else (pi() / 2).copy_sign(c))
    return (sine + (pi() - angle) * c) / (2 * pi())


def gelu(v: Decimal, w: Decimal, c: Decimal) -> Decimal:
    rest = max(v * w - c * c, Decimal(0))
    root = (1 + v + w + rest).sqrt()
    angle = pi() / 2 + arctangent(c / root)
    return (c * angle + (rest + c * c * (1 / (1 + v) + 1 / (1 + w))) / root) / (2 * pi())


def erf(v: Decimal, w: Decimal, c: Decimal) -> Decimal:
    rest = (1 + 2 * v) * (1 + 2 * w) - 4 * c * c
    return 2 / pi() * arctangent(2 * c / rest.sqrt())


def sine(frequency: float) -> Callable[[Decimal, Decimal, Decimal], Decimal]:
    square = Decimal(frequency) ** 2
    return lambda v, w, c: ((-square * (v + w - 2 * c) / 2).exp() - (-square * (v + w + 2 * c) / 2).exp()) / 2


EXACT: list[tuple[nl.Nonlinearity, Callable[[Decimal, Decimal, Decimal], Decimal]]] = [
    (nl.identity(), identity),
    (nl.relu(), relu),
    (nl.gelu(), gelu),
    (nl.erf(), erf),
    *((nl.sin(f), sine(f)) for f in (0.1, 5.0)),
]


@pytest.mark.parametrize(("phi", "exact"), EXACT, ids=[f"{phi.name}{phi.parameters}" for phi, _ in EXACT])
@settings(max_examples=50)
@given(v1=VARIANCES, v2=VARIANCES, rho=CORRELATIONS)
def test_error_bounds_the_rounding(
    phi: nl.Nonlinearity, exact: Callable[[Decimal, Decimal, Decimal], Decimal], v1: float, v2: float, rho: float
) -> None:
    c = rho * math.sqrt(v1 * v2)
    value, error = phi.dual(v1, v2, c)
    with localcontext(prec=60):
        v, w = Decimal(v1), Decimal(v2)
        largest = (v * w).sqrt()
        right = exact(v, w, min(max(Decimal(c), -largest), largest))
        assert abs(Decimal(float(value)) - right) <= Decimal(float(error))
        # A useful bound: a few hundred roundings, and more if the variances are many squared scales.
        size = exact(v, v, v) + exact(w, w, w) + 1
        assert float(error) <= 1e-12 * float(size) * (1 + 100 * max(v1, v2))
