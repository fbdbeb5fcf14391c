"""Nonlinearities φ of a Netsor program: what the theorem asks of them, and E[φ(Z₁)φ(Z₂)].

Known functions have constructors here: `identity`, `relu`, `gelu`, `leaky_relu`, `monomial`, `clip`, `erf`, `tanh`,
`sigmoid`, `sin`, `cos`, `gaussian`. A new one takes a record in ``attncheck.layers.nonlinearity.table`` and a
constructor. Any other function is used with `declared`, which believes what is said of it.
"""

from attncheck.layers.nonlinearity.declared import DeclaredFunction, declared
from attncheck.layers.nonlinearity.families import (
    clip,
    cos,
    erf,
    gaussian,
    gelu,
    identity,
    leaky_relu,
    monomial,
    of_inputs,
    relu,
    sigmoid,
    sin,
    tanh,
)
from attncheck.layers.nonlinearity.function import Nonlinearity

__all__ = [
    "DeclaredFunction",
    "Nonlinearity",
    "clip",
    "cos",
    "declared",
    "erf",
    "gaussian",
    "gelu",
    "identity",
    "leaky_relu",
    "monomial",
    "of_inputs",
    "relu",
    "sigmoid",
    "sin",
    "tanh",
]
