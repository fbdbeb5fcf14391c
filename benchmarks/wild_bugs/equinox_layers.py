"""Equinox attention, without batches."""

from __future__ import annotations

import math
from functools import partial

from benchmarks.wild_bugs.bug import HEADS, WIDTH, right
from benchmarks.wild_bugs.variants_equinox import attention, plain

_THIRD = math.sqrt(1.0 / 3.0)


RIGHT = (
    right(
        "equinox MultiheadAttention",
        partial(attention, WIDTH, HEADS, False),
        call=plain,
        declared={"query_std": _THIRD, "key_std": _THIRD, "value_std": _THIRD, "output_std": _THIRD, "mask": "none"},
    ),
)
