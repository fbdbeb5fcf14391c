"""Right flax layers of random sizes, of both styles and by hand."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from benchmarks.wild_bugs.bug import next_seed
from benchmarks.wild_bugs.variants import Variant

#: Orders of the axes of scores: batch, heads, queries, keys.
ORDERS = ("bhij", "bijh", "hbij")


class Written(linen.Module):
    """Attention by einsum.

    Attributes
    ----------
    heads, head_dim, groups : int
        `groups`: heads of keys and values.
    order : str
        Order of the axes of scores.
    causal, bias, scaled_queries : bool
    std : float or None
        Of all matrices; None for 1/√fan-in.
    fault : {"", "tiled", "scaled twice"}
        Heads of keys and values are tiled instead of repeated; queries are scaled as well as scores.
    """

    heads: int
    head_dim: int
    groups: int
    order: str = "bhij"
    causal: bool = False
    bias: bool = False
    scaled_queries: bool = False
    std: float | None = None
    fault: str = ""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        initializers = linen.initializers
        init = initializers.lecun_normal() if self.std is None else initializers.normal(self.std)
        dense = partial(linen.DenseGeneral, use_bias=self.bias, kernel_init=init)

        def project(heads: int, name: str) -> jax.Array:
            return dense((heads, self.head_dim), name=name)(x)

        q, k, v = project(self.heads, "q"), project(self.groups, "k"), project(self.groups, "v")
        times, tiled = self.heads // self.groups, self.fault == "tiled"
        k, v = (jnp.tile(x, (1, 1, times, 1)) if tiled else jnp.repeat(x, times, axis=2) for x in (k, v))
        before = self.head_dim**-0.5 if self.scaled_queries or self.fault == "scaled twice" else 1.0
        after = 1.0 if self.scaled_queries else self.head_dim**-0.5
        scores = jnp.einsum(f"bihd,bjhd->{self.order}", q * before, k) * after
        if self.causal:
            seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), dtype=bool))
            scores = jnp.where(seen[..., None] if self.order == "bijh" else seen, scores, -1e9)
        weights = jax.nn.softmax(scores, axis=self.order.index("j"))
        mixed = jnp.einsum(f"{self.order},bjhd->bihd", weights, v)
        return dense(x.shape[-1], axis=(-2, -1), name="out")(mixed)


def bound(module: linen.Module, width: int) -> Any:
    """Return a linen module bound to fresh parameters."""
    return module.bind(module.init(jax.random.key(next_seed()), jnp.zeros((1, 2, width))))


def of_nnx(width: int, heads: int, **options: Any) -> Any:
    return nnx.MultiHeadAttention(
        num_heads=heads, in_features=width, decode=False, rngs=nnx.Rngs(next_seed()), **options
    )


def causal(module: Any, x: Any) -> Any:
    return module(x, mask=linen.make_causal_mask(x[..., 0]))


def variants(seed: int) -> tuple[Variant, ...]:
    """Return six layers by hand, and two of each style of flax."""
    rng = random.Random(f"flax, {seed}")
    made = []
    width, heads = rng.choice((32, 64, 96)), rng.choice((2, 4))  # one size, which is compiled once
    for i in range(6):
        layer = Written(
            heads=heads,
            head_dim=width // heads,
            groups=rng.choice((heads, heads // 2)),
            order=ORDERS[i % len(ORDERS)],
            causal=rng.random() < 0.5,
            bias=rng.random() < 0.5,
            scaled_queries=rng.random() < 0.5,
        )
        what = f"{heads} heads, {layer.groups} of keys, {layer.order}{', causal' * layer.causal}"
        made.append(Variant(name=f"flax by hand {i}: {what}", make=partial(bound, layer, width), width=width))
    for call in (None, causal):
        mask = "no mask" if call is None else "causal"
        bias = rng.random() < 0.5
        named: dict[str, Any] = {"width": width, "call": call}
        linen_layer = linen.MultiHeadDotProductAttention(num_heads=heads, use_bias=bias)
        made.append(Variant(name=f"flax linen, {mask}", make=partial(bound, linen_layer, width), **named))
        made.append(Variant(name=f"flax nnx, {mask}", make=partial(of_nnx, width, heads, use_bias=bias), **named))
    return tuple(made)
