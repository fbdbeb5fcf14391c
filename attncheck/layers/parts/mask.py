"""Masks: which positions a position attends to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck._lib.arrays import BoolArray
from attncheck._lib.errors import refuse
from attncheck.layers.parts import named_function

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


#: Names of attncheck's masks.
MASKS: tuple[str, ...] = ("none", "causal")
_REMEDY = "or pass a vectorised function of positions (i, j) that returns True where i attends to j"


def plain_mask(layer: AttentionLayer) -> bool:
    """Return whether a layer has attncheck's causal mask or none, and no window."""
    return layer.mask in MASKS and layer.window is None


@functools.lru_cache(maxsize=256)
def visible(mask: Any, window: int | None, seq_len: int) -> BoolArray:
    """Return the mask of `AttentionLayer.visible` for these fields; read-only."""
    rows, columns = np.ogrid[:seq_len, :seq_len]
    matrix = np.ones((seq_len, seq_len), dtype=bool)
    if mask == "causal":
        matrix = rows >= columns
    elif mask != "none":
        matrix = _evaluated(named_function.resolve("mask", mask), seq_len)
    if window is not None:
        matrix = matrix & (np.abs(rows - columns) < window)
    matrix.setflags(write=False)
    return matrix


def nested(mask: BoolArray) -> bool:
    """Return whether a mask allows drawing scores P = U N Lᵀ through an upper triangular U and a lower triangular L.

    It does if, for all such U and L, the visible entries of P depend only on the visible entries of the matrix N. This
    is true without a mask and for the causal mask.

    Examples
    --------
    >>> nested(np.tri(3, dtype=bool)), nested(np.eye(3, dtype=bool))
    (True, False)
    """
    needed = np.flip(np.logical_or.accumulate(np.flip(mask, axis=1), axis=1), axis=1)
    needed = np.logical_or.accumulate(needed, axis=0)
    return bool((mask == needed).all())


def check_mask(field: str, value: Any, seq_len: int) -> Any:
    """Return a validated `mask`."""
    return named_function.validate(field, value, MASKS, _REMEDY, lambda function: _evaluated(function, seq_len))


def _evaluated(function: Callable[..., Any], seq_len: int) -> BoolArray:
    """Return a user's mask as a matrix, after validating it."""
    rows, columns = np.indices((seq_len, seq_len))
    try:
        matrix, again = (np.asarray(function(rows.copy(), columns.copy())) for _ in range(2))
    except Exception as error:
        refuse("mask", function, f"raised {type(error).__name__}: {error}", _REMEDY[3:])
    if matrix.shape != rows.shape or matrix.dtype != bool:
        problem = f"returned {matrix.dtype} of shape {matrix.shape} for positions of shape {rows.shape}"
        refuse("mask", function, problem, "return booleans of that shape")
    if not np.array_equal(matrix, again):
        refuse("mask", function, "varies between calls", "pass a function without randomness")
    if not np.diagonal(matrix).all():
        hidden = int(np.flatnonzero(~np.diagonal(matrix))[0])
        refuse("mask", function, f"hides position {hidden} from itself", "let each position attend to itself")
    return matrix
