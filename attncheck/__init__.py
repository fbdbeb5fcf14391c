"""attncheck: does this attention simulator behave as the infinite-width theorem says?

The names below are the public interface. They are imported when first used, so that ``import
attncheck`` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck._lib.errors import InputError
    from attncheck.api import CheckReport, check
    from attncheck.layers.attention import AttentionLayer
    from attncheck.layers.nonlinearity import (
        clip,
        cos,
        declared,
        erf,
        gaussian,
        identity,
        leaky_relu,
        monomial,
        relu,
        sigmoid,
        sin,
        tanh,
    )
    from attncheck.layers.program import Program
    from attncheck.layers.stack import AttentionStack
    from attncheck.readings import simulate, simulate_chunks
    from attncheck.simulators.draws import Draws, ProgramDraws, StackDraws
    from attncheck.theory.limit import limit
    from attncheck.theory.limits.covariance import infinite_heads_kernel
    from attncheck.theory.limits.law import LimitLaw
    from attncheck.theory.limits.programs import ProgramLimit
    from attncheck.theory.rates.distance import distance
    from attncheck.theory.rates.law import Distance, FiniteWidthLaw, finite_width_law
    from attncheck.theory.rates.rate import Rate, rate
    from attncheck.theory.stacks.law import StackLaw

__version__ = "0.1.0"

_HOMES = {
    "AttentionLayer": "attncheck.layers.attention",
    "AttentionStack": "attncheck.theory.stacks",
    "CheckReport": "attncheck.api",
    "Distance": "attncheck.theory.rates.law",
    "Draws": "attncheck.simulators.draws",
    "FiniteWidthLaw": "attncheck.theory.rates.law",
    "InputError": "attncheck._lib.errors",
    "LimitLaw": "attncheck.theory.limits.law",
    "Program": "attncheck.layers.program",
    "ProgramDraws": "attncheck.simulators.draws",
    "ProgramLimit": "attncheck.theory.limits.programs",
    "Rate": "attncheck.theory.rates.rate",
    "StackDraws": "attncheck.simulators.draws",
    "StackLaw": "attncheck.theory.stacks.law",
    "check": "attncheck.api",
    "clip": "attncheck.layers.nonlinearity",
    "cos": "attncheck.layers.nonlinearity",
    "declared": "attncheck.layers.nonlinearity",
    "distance": "attncheck.theory.rates.distance",
    "erf": "attncheck.layers.nonlinearity",
    "finite_width_law": "attncheck.theory.rates.law",
    "gaussian": "attncheck.layers.nonlinearity",
    "identity": "attncheck.layers.nonlinearity",
    "infinite_heads_kernel": "attncheck.theory.limits.covariance",
    "leaky_relu": "attncheck.layers.nonlinearity",
    "limit": "attncheck.limit",
    "monomial": "attncheck.layers.nonlinearity",
    "rate": "attncheck.theory.rates.rate",
    "relu": "attncheck.layers.nonlinearity",
    "sigmoid": "attncheck.layers.nonlinearity",
    "simulate": "attncheck.readings",
    "simulate_chunks": "attncheck.readings",
    "sin": "attncheck.layers.nonlinearity",
    "tanh": "attncheck.layers.nonlinearity",
}

__all__ = [
    "AttentionLayer",
    "AttentionStack",
    "CheckReport",
    "Distance",
    "Draws",
    "FiniteWidthLaw",
    "InputError",
    "LimitLaw",
    "Program",
    "ProgramDraws",
    "ProgramLimit",
    "Rate",
    "StackDraws",
    "StackLaw",
    "check",
    "clip",
    "cos",
    "declared",
    "distance",
    "erf",
    "finite_width_law",
    "gaussian",
    "identity",
    "infinite_heads_kernel",
    "leaky_relu",
    "limit",
    "monomial",
    "rate",
    "relu",
    "sigmoid",
    "simulate",
    "simulate_chunks",
    "sin",
    "tanh",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attncheck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
