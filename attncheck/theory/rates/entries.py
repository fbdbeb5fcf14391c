"""Laws of weights: characteristic functions and fourth cumulants of their entries."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from attncheck._lib.arrays import FloatArray
from attncheck.simulators.weights import GAUSSIAN

# Range of the tabulated characteristic function, and its number of knots.
_TABLE, _KNOTS = 40.0, 2**12


def _sinc(x: FloatArray) -> FloatArray:
    scaled = 3.0**0.5 * x + 1e-30
    return np.asarray(np.sin(scaled) / scaled)


@functools.lru_cache(maxsize=1)
def _truncated_rule() -> tuple[FloatArray, FloatArray]:
    """Return Gauss–Legendre nodes and weights for a standard normal cut at ±2 and rescaled."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    masses = weights * np.exp(-0.5 * (2.0 * nodes) ** 2)
    masses = masses / masses.sum()
    return 2.0 * nodes / math.sqrt(float(masses @ (2.0 * nodes) ** 2)), masses


@functools.lru_cache(maxsize=1)
def _truncated_spline() -> FloatArray:
    """Return spline coefficients of the truncated law's characteristic function, (4, knots - 1)."""
    nodes, weights = _truncated_rule()
    table = np.linspace(0.0, _TABLE, _KNOTS)
    spline = scipy.interpolate.CubicSpline(table, np.cos(np.multiply.outer(table, nodes)) @ weights)
    return np.asarray(spline.c * table[1] ** np.array([[3], [2], [1], [0]]))


def _truncated(x: FloatArray) -> FloatArray:
    # Knots are evenly spaced, so a division finds the knot below a point.
    place = np.minimum(np.abs(x), _TABLE) * ((_KNOTS - 1) / _TABLE)
    below = np.minimum(place.astype(np.intp), _KNOTS - 2)
    a, b, c, d = (each[below] for each in _truncated_spline())
    t = place - below
    return np.asarray(((a * t + b) * t + c) * t + d)


def _student(x: FloatArray) -> FloatArray:
    scaled = math.sqrt(3.0) * np.abs(x)
    return np.asarray(np.exp(-scaled) * (1.0 + scaled + scaled**2 / 3.0))


def _normal(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * x * x))


#: Characteristic function and fourth cumulant of each law of `attncheck.simulators.weights.WEIGHT_LAWS`.
ENTRY_LAWS: dict[str, tuple[Callable[[FloatArray], FloatArray], float]] = {
    GAUSSIAN: (_normal, 0.0),
    "uniform": (_sinc, -1.2),
    "rademacher": (np.cos, -2.0),
    "truncated normal": (_truncated, float(_truncated_rule()[0] ** 4 @ _truncated_rule()[1]) - 3.0),
    "student5": (_student, 6.0),
}
#: The fourth cumulant of each law.
FOURTH_CUMULANTS: dict[str, float] = {name: fourth for name, (_, fourth) in ENTRY_LAWS.items()}
