"""Closed forms of duals against fifty digits: rounding is within the stated bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck.layers import nonlinearity as nl

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
