"""Constructors of the known nonlinearities."""

from __future__ import annotations

from attncheck.layers.nonlinearity.function import FAMILIES, Nonlinearity


def clip(bound: float) -> Nonlinearity:
    """Return φ(x) = min(max(x, -bound), bound); the paper's bound is 100."""
    return known("clip", bound)


def relu() -> Nonlinearity:
    """Return φ(x) = max(x, 0); unbounded, so outside Assumption 1."""
    return known("relu")


def gelu() -> Nonlinearity:
    """Return φ(x) = x Φ(x), with Φ the standard normal distribution function; unbounded.

    Examples
    --------
    >>> value, error = gelu().dual(1.0, 1.0, 0.0)  # the square of E φ(Z) = 1/(2√π)
    >>> round(float(value * 4 * 3.141592653589793), 12)
    1.0
    """
    return known("gelu")


def tanh() -> Nonlinearity:
    """Return φ(x) = tanh x."""
    return known("tanh")


def sigmoid() -> Nonlinearity:
    """Return φ(x) = 1/(1 + exp(-x))."""
    return known("sigmoid")


def erf() -> Nonlinearity:
    """Return φ(x) = erf x = (2/√π) ∫₀ˣ exp(-u²) du."""
    return known("erf")


def sin(frequency: float = 1.0) -> Nonlinearity:
    """Return φ(x) = sin(frequency·x).

    Examples
    --------
    >>> value, error = sin(2.0).dual(1.0, 1.0, 1.0)  # (1 - e⁻⁸)/2
    >>> round(float(value), 6)
    0.499832
    """
    return known("sin", frequency)


def identity() -> Nonlinearity:
    """Return φ(x) = x; unbounded, so outside Assumption 1."""
    return known("identity")


def known(name: str, *values: float) -> Nonlinearity:
    """Return the nonlinearity of a name in `FAMILIES`, with these parameters."""
    return Nonlinearity(name, values, 1, FAMILIES[name].bounded)
