"""Constructors of the known nonlinearities."""

from __future__ import annotations

from attncheck.layers.inputs import InputLaw
from attncheck.layers.nonlinearity.function import FAMILIES, Nonlinearity


def clip(bound: float) -> Nonlinearity:
    """Return φ(x) = min(max(x, -bound), bound); the paper's bound is 100."""
    return _make("clip", bound)


def relu() -> Nonlinearity:
    """Return φ(x) = max(x, 0); unbounded, so outside Assumption 1."""
    return _make("relu")


def gelu() -> Nonlinearity:
    """Return φ(x) = x Φ(x), with Φ the standard normal distribution function; unbounded.

    Examples
    --------
    >>> value, error = gelu().dual(1.0, 1.0, 0.0)  # the square of E φ(Z) = 1/(2√π)
    >>> round(float(value * 4 * 3.141592653589793), 12)
    1.0
    """
    return _make("gelu")


def tanh() -> Nonlinearity:
    """Return φ(x) = tanh x."""
    return _make("tanh")


def sigmoid() -> Nonlinearity:
    """Return φ(x) = 1/(1 + exp(-x))."""
    return _make("sigmoid")


def erf() -> Nonlinearity:
    """Return φ(x) = erf x = (2/√π) ∫₀ˣ exp(-u²) du."""
    return _make("erf")


def sin(frequency: float = 1.0) -> Nonlinearity:
    """Return φ(x) = sin(frequency·x).

    Examples
    --------
    >>> value, error = sin(2.0).dual(1.0, 1.0, 1.0)  # (1 - e⁻⁸)/2
    >>> round(float(value), 6)
    0.499832
    """
    return _make("sin", frequency)


def identity() -> Nonlinearity:
    """Return φ(x) = x; unbounded, so outside Assumption 1."""
    return _make("identity")


def of_inputs(law: InputLaw) -> Nonlinearity:
    """Return the φ of a layer's inputs x^i = φ(h^i).

    Examples
    --------
    >>> of_inputs(InputLaw(seq_len=4, clip=2.0))
    Nonlinearity(name='clip', parameters=(2.0,), order=1, bounded=True)
    """
    return _make(law.activation, *([law.clip] if law.activation == "clip" else []))


def _make(name: str, *values: float) -> Nonlinearity:
    return Nonlinearity(name, values, 1, FAMILIES[name].bounded)
