"""Flax attention in both styles, and user-written layers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from benchmarks.wild_bugs.bug import QUERY, SCALE, Bug, Right, next_seed

WIDTH, HEADS = 64, 4
HEAD_DIM = WIDTH // HEADS


def bound(module: linen.Module) -> Any:
    """Return a linen module bound to fresh parameters."""
    example = jnp.zeros((1, 2, WIDTH))
    return module.bind(module.init(jax.random.key(next_seed()), example))


class Attention(linen.Module):
    """Hand-written grouped attention.

    Attributes
    ----------
    groups : int
        Heads of keys and values.
    std : float or None
        Of all matrices; None for 1/√fan-in.
    tiled : bool
        Tile heads of keys and values instead of repeating them.
    twice : bool
        Scale queries as well as scores.
    """

    groups: int = HEADS
    std: float | None = None
    tiled: bool = False
    twice: bool = False

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        normal, lecun = linen.initializers.normal, linen.initializers.lecun_normal
        init = lecun() if self.std is None else normal(self.std)

        def project(heads: int, name: str) -> jax.Array:
            return linen.DenseGeneral((heads, HEAD_DIM), use_bias=False, kernel_init=init, name=name)(x)

        query, key, value = project(HEADS, "wq"), project(self.groups, "wk"), project(self.groups, "wv")
        times = HEADS // self.groups
        if self.tiled:
            key, value = jnp.tile(key, (1, 1, times, 1)), jnp.tile(value, (1, 1, times, 1))
        else:
            key, value = jnp.repeat(key, times, axis=2), jnp.repeat(value, times, axis=2)
        if self.twice:
            query = query / math.sqrt(HEAD_DIM)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(HEAD_DIM)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
        return linen.DenseGeneral(WIDTH, axis=(-2, -1), use_bias=False, kernel_init=init, name="wo")(mixed)


def nnx_attention() -> Any:
    return nnx.MultiHeadAttention(num_heads=HEADS, in_features=WIDTH, decode=False, rngs=nnx.Rngs(next_seed()))


BUGS = (
    Bug(
        name="scaled twice",
        source="maxtext PR#1349",
        what="1/√head_dim is applied to the queries and to the scores",
        make=lambda: bound(Attention(twice=True)),
        width=WIDTH,
        declared={"scale": HEAD_DIM**-0.5},
        sentence=(SCALE, r"1/head_dim\b|1/d\b|\b1/16\b|\b0\.06(25?|3)\b|head_dim\^-1"),
    ),
    Bug(
        name="std 1",
        source="EasyLM#114",
        what="weights of standard deviation 1 in place of 1/√n",
        make=lambda: bound(Attention(std=1.0)),
        width=WIDTH,
        declared={"query_std": 1.0},
        sentence=(QUERY, r"√(n|width|64|fan-in) times|\b8\.0\d*|\b7\.9\d*"),
    ),
    Bug(
        name="tiled groups, flax",
        source="jax-js#180",
        what="query head h uses head h mod G of the keys and values, not ⌊h·G/H⌋",
        make=lambda: bound(Attention(groups=2, tiled=True)),
        width=WIDTH,
        sentence=(r"\btiled\b|0, ?1, ?0, ?1|\bmod\b",),
    ),
)

_ALL = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 1.0)
_DECLARED = {**_ALL, "mask": "none", "scale": HEAD_DIM**-0.5}

RIGHT = (
    Right(
        name="flax linen MultiHeadDotProductAttention",
        make=lambda: bound(linen.MultiHeadDotProductAttention(num_heads=HEADS)),
        width=WIDTH,
        declared=_DECLARED,
    ),
    Right(name="flax nnx MultiHeadAttention", make=nnx_attention, width=WIDTH, declared=_DECLARED),
)
ZOO = RIGHT
