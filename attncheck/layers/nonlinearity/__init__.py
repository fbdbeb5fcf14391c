"""Nonlinearities φ of Netsor programs, with closed forms or quadrature for E[φ(Z₁)φ(Z₂)].

To add a built-in function, add it to `FAMILIES` in ``attncheck.layers.nonlinearity.function``, and write a constructor.
For a function of your own, use `declared`.
"""

from attncheck.layers.nonlinearity.declared import DeclaredFunction, DeclaredMix, declared
from attncheck.layers.nonlinearity.families import (
    clip,
    erf,
    gelu,
    identity,
    relu,
    sigmoid,
    sin,
    tanh,
)
from attncheck.layers.nonlinearity.function import Nonlinearity

__all__ = [
    "DeclaredFunction",
    "DeclaredMix",
    "Nonlinearity",
    "clip",
    "declared",
    "erf",
    "gelu",
    "identity",
    "relu",
    "sigmoid",
    "sin",
    "tanh",
]
