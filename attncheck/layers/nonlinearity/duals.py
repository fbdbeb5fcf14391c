"""Closed forms of E[φ(Z₁)φ(Z₂)] for zero-mean Gaussian (Z₁, Z₂), with rounding bounds.

Each function takes the variances `v1` and `v2` and the covariance `c` of Z₁ and Z₂, arrays of one shape, and the
parameters of φ, and returns values with bounds on their rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.layers.nonlinearity.covariances import correlation

Parameters = tuple[float, ...]
Bounded = tuple[FloatArray, FloatArray]
Dual = Callable[[FloatArray, FloatArray, FloatArray, Parameters], Bounded]

_EPS: Final = float(np.finfo(np.float64).eps)
# Error bound for values that underflow to 0.
_TINY: Final = float(np.finfo(np.float64).tiny)


def identity(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """Return E[φ(Z₁)φ(Z₂)] for the identity, which is the covariance c = E[Z₁Z₂], and an error bound."""
    return c.copy(), 2 * _EPS * np.abs(c)


def relu(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """Return E[φ(Z₁)φ(Z₂)] for ReLU, which is the arc-cosine kernel of degree one, and an error bound."""
    rho, scale = correlation(v1, v2, c)
    sine = np.sqrt((1 - rho) * (1 + rho))
    value = scale * (sine + (np.pi - np.arccos(rho)) * rho) / (2 * np.pi)
    return value, 4 * _EPS * scale


def erf(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """Return E[φ(Z₁)φ(Z₂)] for erf, which is the arcsine kernel, and an error bound.

    The arctangent form of the kernel is used because it is more accurate.
    """
    scale = np.sqrt(v1) * np.sqrt(v2)
    rest = 1 + 2 * (v1 + v2) + 4 * (scale - c) * (scale + c)
    value = (2 / np.pi) * np.arctan2(2 * c, np.sqrt(rest))
    # The rounding error of `scale` is also an error of scale - c, which matters for large variances.
    uncertain = 32 * _EPS * scale**2 * np.abs(c) / ((4 * c**2 + rest) * np.sqrt(rest))
    return value, 8 * _EPS * np.abs(value) + uncertain


def gelu(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """Return E[φ(Z₁)φ(Z₂)] for GELU, by Stein's lemma, and an error bound.

    With Φ the standard normal distribution function and c the covariance, it is c E[Φ(Z₁)Φ(Z₂)], an orthant probability
    times c, plus terms in E[Φ'(Z₁)Φ'(Z₂)].
    """
    scale = np.sqrt(v1) * np.sqrt(v2)
    # `rest` is the determinant v1 v2 - c², and `root` the square root of det(I + Σ).
    rest = np.maximum(scale - c, 0.0) * np.maximum(scale + c, 0.0)
    root = np.sqrt(1 + v1 + v2 + rest)
    of_angle = c * np.arctan2(root, -c) / (2 * np.pi)
    of_density = (rest + c**2 * (1 / (1 + v1) + 1 / (1 + v2))) / (2 * np.pi * root)
    # As in `erf`, the rounding error of `scale` is also an error of v1 v2 - c².
    uncertain = scale**2 / root + np.abs(c) / root * scale**2 / (1 + v1 + v2 + rest)
    return of_angle + of_density, 16 * _EPS * (np.abs(of_angle) + of_density + np.abs(c) + uncertain)


def sin(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """Return E[φ(Z₁)φ(Z₂)] for a sine of frequency ω, and an error bound.

    It is E[cos ω(Z₁-Z₂) - cos ω(Z₁+Z₂)]/2, computed without cancellation.
    """
    squared_frequency = parameters[0] ** 2
    # The smaller of the two variances Var(Z₁ ± Z₂); differences of nearly equal numbers are exact.
    variance = np.maximum((v1 - np.abs(c)) + (v2 - np.abs(c)), 0.0)
    # The larger of the two means E cos ω(Z₁ ± Z₂), and the logarithm of the smaller one divided by the larger one.
    mean_cosine, log_ratio = np.exp(-0.5 * squared_frequency * variance), -2 * squared_frequency * np.abs(c)
    value = -0.5 * np.sign(c) * mean_cosine * np.expm1(log_ratio)
    return value, _EPS * (8 + 4 * squared_frequency * (v1 + v2)) * np.abs(value) + _TINY


def clip(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """Return E[φ(Z₁)φ(Z₂)] for clip, by clip(X) = X - (X-a)₊ + (-X-a)₊, and an error bound.

    X is Z₁ or Z₂ divided by its standard deviation, and a is the clipping bound divided by this standard deviation.
    """
    (limit,) = parameters
    rho, scale = correlation(v1, v2, c)
    # In double precision, clipping at 40 standard deviations or more changes nothing.
    a, b = (np.minimum(limit / np.sqrt(np.where(v > 0, v, 1.0)), 40.0) for v in (v1, v2))
    inner = rho * (special.erf(a / np.sqrt(2)) - 2 * special.ndtr(-b))
    overshoot = _excess_product(a, b, rho) - _excess_product(a, b, -rho)
    return scale * (inner + 2 * overshoot), 16 * _EPS * scale


def _excess_product(a: FloatArray, b: FloatArray, rho: FloatArray) -> FloatArray:
    """Return E[(X-a)₊(Y-b)₊] for standard normal X, Y of correlation rho and a, b > 0."""
    sine = np.sqrt((1 - rho) * (1 + rho))
    # The differences a - rho·b and b - rho·a, in a form that is accurate for a = b and rho → 1.
    above_a, above_b = (a - b) + (1 - rho) * b, (b - a) + (1 - rho) * a
    both = (
        0.5 * (special.ndtr(-a) + special.ndtr(-b))
        - special.owens_t(a, _ratio(above_b, a * sine))
        - special.owens_t(b, _ratio(above_a, b * sine))
    )
    at_a = b * _density(a) * special.ndtr(-_ratio(above_b, sine))
    at_b = a * _density(b) * special.ndtr(-_ratio(above_a, sine))
    # (1-ρ²) times the joint density of X and Y at (a, b).
    corner = sine * _density(a) * np.exp(-0.5 * _ratio(above_b, sine) ** 2) / np.sqrt(2 * np.pi)
    return np.asarray((rho + a * b) * both - at_a - at_b + corner, dtype=np.float64)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the quotient, or its limit 0 or ±∞ where the nonnegative denominator is 0."""
    limit = np.where(numerator == 0, 0.0, np.copysign(np.inf, numerator))
    with np.errstate(over="ignore"):
        return np.divide(numerator, denominator, out=limit, where=denominator > 0)


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi), dtype=np.float64)
