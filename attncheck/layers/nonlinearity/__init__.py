"""Nonlinearities φ of Netsor programs, with closed forms or quadrature for E[φ(Z₁)φ(Z₂)].

A new known function needs an entry in ``attncheck.layers.nonlinearity.function`` and a constructor; use `declared`
for any other function.
"""

from attncheck.layers.nonlinearity.declared import DeclaredFunction, DeclaredMix, declared
from attncheck.layers.nonlinearity.families import (
    clip,
    erf,
    gelu,
    identity,
    of_inputs,
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
    "of_inputs",
    "relu",
    "sigmoid",
    "sin",
    "tanh",
]
