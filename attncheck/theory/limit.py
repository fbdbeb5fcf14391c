"""`limit`: the infinite-width law of a layer or of a program's lines, or the conjectured one of a stack."""

from __future__ import annotations

import functools
from typing import overload

from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.program import Program
from attncheck.layers.stack import AttentionStack
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.limits.programs import ProgramLimit, limit_of_program
from attncheck.theory.stacks.law import StackLaw


def cached_limit(layer: AttentionLayer) -> LimitLaw:
    """Return the limit law of a layer; layers that differ only in width share one cached law."""
    return _cache(layer.replace(width=2))  # layer norm needs a width of 2


_cache = functools.lru_cache(maxsize=64)(LimitLaw)


@overload
def limit(layer: AttentionLayer) -> LimitLaw: ...


@overload
def limit(layer: Program) -> ProgramLimit: ...


@overload
def limit(layer: AttentionStack) -> StackLaw: ...


def limit(layer: AttentionLayer | Program | AttentionStack) -> LimitLaw | ProgramLimit | StackLaw:
    """Return the infinite-width limit law of a layer's outputs, or the limit variables of a program.

    Parameters
    ----------
    layer : AttentionLayer, Program or AttentionStack
        The law of a stack of two layers or more, or of one with a perceptron, is a conjecture. With a `head_dim`,
        width and head_dim both go to infinity. Heads of a group that share W^K and W^V have the
        same limit as separate heads.

    Returns
    -------
    LimitLaw, ProgramLimit or StackLaw

    Raises
    ------
    InputError
        If `layer` has another type, or is a program without a limit (see `Program.coverage`).

    Examples
    --------
    >>> law = limit(AttentionLayer(width=64, seq_len=4, num_heads=2))
    >>> law.covariance()[0, 0].round(3), round(law.excess_kurtosis(), 3)
    (np.float64(0.392), 0.122)
    """
    if isinstance(layer, Program):
        return limit_of_program(layer)
    if isinstance(layer, AttentionStack):
        return StackLaw(layer)
    return LimitLaw(check_layer(layer, "pass attncheck.AttentionLayer(width=...) or an attncheck.Program"))
