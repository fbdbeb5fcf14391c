"""attncheck: does this attention simulator behave as the infinite-width theorem says?

The names below are the public interface. They are imported when first used, so that ``import
attncheck`` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.api import CheckReport, check
    from attncheck.attention import AttentionLayer
    from attncheck.errors import InputError
    from attncheck.limit import limit
    from attncheck.limits.covariance import infinite_heads_kernel
    from attncheck.limits.law import LimitLaw
    from attncheck.limits.programs import ProgramLimit
    from attncheck.nonlinearity import (
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
    from attncheck.program import Program
    from attncheck.rates.distance import distance
    from attncheck.rates.law import Distance, FiniteWidthLaw, finite_width_law
    from attncheck.rates.rate import Rate, rate
    from attncheck.readings import simulate, simulate_chunks
    from attncheck.simulators.draws import Draws, ProgramDraws, StackDraws
    from attncheck.stacks import AttentionStack
    from attncheck.stacks.law import StackLaw

__version__ = "0.1.0"

_HOMES = {
    "AttentionLayer": "attncheck.attention",
    "AttentionStack": "attncheck.stacks",
    "CheckReport": "attncheck.api",
    "Distance": "attncheck.rates.law",
    "Draws": "attncheck.simulators.draws",
    "FiniteWidthLaw": "attncheck.rates.law",
    "InputError": "attncheck.errors",
    "LimitLaw": "attncheck.limits.law",
    "Program": "attncheck.program",
    "ProgramDraws": "attncheck.simulators.draws",
    "ProgramLimit": "attncheck.limits.programs",
    "Rate": "attncheck.rates.rate",
    "StackDraws": "attncheck.simulators.draws",
    "StackLaw": "attncheck.stacks.law",
    "check": "attncheck.api",
    "clip": "attncheck.nonlinearity",
    "cos": "attncheck.nonlinearity",
    "declared": "attncheck.nonlinearity",
    "distance": "attncheck.rates.distance",
    "erf": "attncheck.nonlinearity",
    "finite_width_law": "attncheck.rates.law",
    "gaussian": "attncheck.nonlinearity",
    "identity": "attncheck.nonlinearity",
    "infinite_heads_kernel": "attncheck.limits.covariance",
    "leaky_relu": "attncheck.nonlinearity",
    "limit": "attncheck.limit",
    "monomial": "attncheck.nonlinearity",
    "rate": "attncheck.rates.rate",
    "relu": "attncheck.nonlinearity",
    "sigmoid": "attncheck.nonlinearity",
    "simulate": "attncheck.readings",
    "simulate_chunks": "attncheck.readings",
    "sin": "attncheck.nonlinearity",
    "tanh": "attncheck.nonlinearity",
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
