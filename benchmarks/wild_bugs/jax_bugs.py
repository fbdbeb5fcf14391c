"""Flax attention in both styles, and user-written layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flax import linen

from benchmarks.wild_bugs.bug import HEADS, QUERY, SCALE, WIDTH, bug, right
from benchmarks.wild_bugs.variants_flax import Written, bound, of_nnx

HEAD_DIM = WIDTH // HEADS


def written(groups: int = HEADS, **options: Any) -> Callable[[], Any]:
    """Return what makes a hand-written layer."""
    return partial(bound, Written(heads=HEADS, head_dim=HEAD_DIM, groups=groups, **options), WIDTH)


BUGS = (
    bug(
        "scaled twice",
        "maxtext PR#1349",
        "1/√head_dim is applied to the queries and to the scores",
        written(fault="scaled twice"),
        SCALE,
        r"1/head_dim\b|1/d\b|\b1/16\b|\b0\.06(25?|3)\b|head_dim\^-1",
        declared={"scale": HEAD_DIM**-0.5},
    ),
    bug(
        "std 1",
        "EasyLM#114",
        "weights of standard deviation 1 in place of 1/√n",
        written(std=1.0),
        QUERY,
        r"√(n|width|64|fan-in) times|\b8\.0\d*|\b7\.9\d*",
        declared={"query_std": 1.0},
    ),
    bug(
        "tiled groups, flax",
        "jax-js#180",
        "query head h uses head h mod G of the keys and values, not ⌊h·G/H⌋",
        written(groups=2, fault="tiled"),
        r"\btiled\b|0, ?1, ?0, ?1|\bmod\b",
    ),
)

_ALL = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 1.0)
_DECLARED = {**_ALL, "mask": "none", "scale": HEAD_DIM**-0.5}

RIGHT = (
    right(
        "flax linen MultiHeadDotProductAttention",
        partial(bound, linen.MultiHeadDotProductAttention(num_heads=HEADS), WIDTH),
        declared=_DECLARED,
    ),
    right(
        "flax nnx MultiHeadAttention",
        partial(of_nnx, WIDTH, HEADS),
        declared=_DECLARED,
    ),
)
