"""Right equinox layers of random sizes."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import equinox
import jax
import jax.numpy as jnp

from benchmarks.wild_bugs.bug import next_seed
from benchmarks.wild_bugs.variants import Variant


def attention(width: int, heads: int, bias: bool) -> Any:
    biases = dict.fromkeys(("query", "key", "value", "output"), bias)
    uses = {f"use_{role}_bias": use for role, use in biases.items()}
    return equinox.nn.MultiheadAttention(heads, width, key=jax.random.key(next_seed()), **uses)


def plain(layer: Any, x: Any) -> Any:
    return jax.vmap(lambda rows: layer(rows, rows, rows))(x)


def causal(layer: Any, x: Any) -> Any:
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), dtype=bool))
    return jax.vmap(lambda rows: layer(rows, rows, rows, mask=seen))(x)


def variants(seed: int) -> tuple[Variant, ...]:
    rng = random.Random(f"equinox, {seed}")
    made = []
    for name, call in (("no mask", plain), ("causal", causal)):
        width, heads, bias = rng.choice((32, 64)), rng.choice((2, 4)), rng.random() < 0.5
        make = partial(attention, width, heads, bias)
        made.append(Variant(name=f"equinox MultiheadAttention, {name}", make=make, width=width, call=call))
    return tuple(made)
