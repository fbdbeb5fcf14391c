"""Public names of ``import attncheck``: everything except the entry points of pytest and of the command line."""

from __future__ import annotations

from attncheck._lib.errors import InputError
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.widths import widths
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws, ProgramDraws, StackDraws
from attncheck.layers.nonlinearity import (
    clip,
    declared,
    erf,
    gelu,
    identity,
    relu,
    sigmoid,
    sin,
    tanh,
)
from attncheck.layers.program import Program
from attncheck.layers.stack import AttentionStack
from attncheck.methods import simulate, simulate_chunks, tangent_kernel
from attncheck.models.inspection import inspect
from attncheck.models.result import ModelInspection
from attncheck.runs.check import CheckReport, check
from attncheck.scaling.result import Widths
from attncheck.simulators.tangent import TangentDraws
from attncheck.theory.limit import limit
from attncheck.theory.limits.covariance import infinite_heads_kernel
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.limits.programs import ProgramLimit
from attncheck.theory.limits.tangent import infinite_heads_tangent
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.law import Distance, FiniteWidthLaw, finite_width_law
from attncheck.theory.rates.rate import Rate, rate
from attncheck.theory.stacks.law import StackLaw

__all__ = [
    "AttentionLayer",
    "AttentionStack",
    "CheckReport",
    "Distance",
    "Draws",
    "FiniteWidthLaw",
    "InputError",
    "Inspection",
    "LimitLaw",
    "ModelInspection",
    "Program",
    "ProgramDraws",
    "ProgramLimit",
    "Rate",
    "StackDraws",
    "StackLaw",
    "TangentDraws",
    "Widths",
    "check",
    "clip",
    "declared",
    "distance",
    "erf",
    "finite_width_law",
    "gelu",
    "identity",
    "infinite_heads_kernel",
    "infinite_heads_tangent",
    "inspect",
    "limit",
    "rate",
    "relu",
    "sigmoid",
    "simulate",
    "simulate_chunks",
    "sin",
    "tangent_kernel",
    "tanh",
    "widths",
]
