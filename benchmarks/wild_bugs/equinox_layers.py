"""Equinox attention, without batches."""

from __future__ import annotations

import math
from typing import Any

import equinox
import jax

from benchmarks.wild_bugs.bug import Right, next_seed

WIDTH, HEADS = 64, 4
_THIRD = math.sqrt(1.0 / 3.0)


def attention() -> Any:
    return equinox.nn.MultiheadAttention(HEADS, WIDTH, key=jax.random.key(next_seed()))


def each_of_batch(layer: Any, x: Any) -> Any:
    return jax.vmap(lambda rows: layer(rows, rows, rows))(x)


RIGHT = (
    Right(
        name="equinox MultiheadAttention",
        make=attention,
        width=WIDTH,
        call=each_of_batch,
        declared={"query_std": _THIRD, "key_std": _THIRD, "value_std": _THIRD, "output_std": _THIRD, "mask": "none"},
    ),
)
ZOO = RIGHT
