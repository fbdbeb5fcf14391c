"""φ and its dual against numerical integration split at the kinks."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck._lib.arrays import FloatArray
from attncheck.layers import nonlinearity as nl

COVARIANCES = [(1.0, 1.0, 0.97), (1.0, 2.3, 0.3), (0.2, 4.0, -0.7), (30.0, 30.0, 1.0), (0.5, 2.0, -1.0)]
# `test_nonlinearity_exact.py` compares those with closed forms, on all covariances.
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
