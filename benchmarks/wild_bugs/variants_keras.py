"""Right keras layers of random sizes."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import keras

from benchmarks.wild_bugs.variants import Variant


class OneTensor(keras.layers.Layer):
    """EinsumDense layers around a `_compute_attention` that returns one tensor."""

    def __init__(self, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.head_dim, self.causal = heads, head_dim, causal

    def build(self, shape: Any) -> None:
        inner = (None, self.heads, self.head_dim)
        self.q, self.k, self.v = (keras.layers.EinsumDense("btn,nhd->bthd", inner) for _ in range(3))
        self.o = keras.layers.EinsumDense("bthd,hdn->btn", (None, shape[-1]))
        for part in (self.q, self.k, self.v):
            part.build(shape)
        self.o.build((None, *inner))
        super().build(shape)

    def _compute_attention(self, q: Any, k: Any, v: Any) -> Any:
        return keras.ops.dot_product_attention(q, k, v, is_causal=self.causal)

    def call(self, x: Any) -> Any:
        return self.o(self._compute_attention(self.q(x), self.k(x), self.v(x)))


def one_tensor(width: int, heads: int, causal: bool = False) -> Any:
    layer = OneTensor(heads, width // heads, causal)
    layer.build((None, None, width))
    return layer


def attention(width: int, heads: int, bias: bool) -> Any:
    layer = keras.layers.MultiHeadAttention(heads, width // heads, use_bias=bias)
    layer.build((None, None, width), (None, None, width))
    return layer


def grouped(width: int, heads: int, groups: int) -> Any:
    layer = keras.layers.GroupQueryAttention(width // heads, heads, groups)
    layer.build((None, None, width), (None, None, width))
    return layer


def plain(layer: Any, x: Any) -> Any:
    return layer(x)


def to_itself(layer: Any, x: Any) -> Any:
    return layer(x, x)


def causal(layer: Any, x: Any) -> Any:
    return layer(x, x, use_causal_mask=True)


def variants(seed: int) -> tuple[Variant, ...]:
    """Return six layers, of which three are causal."""
    rng = random.Random(f"keras, {seed}")
    made = []
    for masked in (False, True):
        width, heads = rng.choice((32, 64)), rng.choice((2, 4))
        makes = {
            "MultiHeadAttention": partial(attention, width, heads, rng.random() < 0.5),
            "GroupQueryAttention": partial(grouped, width, heads, heads // 2),
            "by EinsumDense, one tensor": partial(one_tensor, width, heads, masked),
        }
        for name, make in makes.items():
            call = plain if make.func is one_tensor else causal if masked else to_itself
            what = f"keras {name}{', causal' * masked}"
            made.append(Variant(name=what, make=make, width=width, call=call))
    return tuple(made)
