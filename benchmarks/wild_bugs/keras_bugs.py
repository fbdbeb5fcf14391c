"""Attention of keras."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras

from benchmarks.wild_bugs.bug import KEY, QUERY, SAME, VALUE, Bug, Right
from benchmarks.wild_bugs.variants_keras import one_tensor, plain

WIDTH, HEADS = 64, 4
#: Width and heads at which convolution fans are wrong by a factor of 36.
LARGE_WIDTH, LARGE_HEADS = 512, 8
_SHAPE = (None, None, WIDTH)


def attention(initializer: Any = "glorot_uniform", width: int = WIDTH, heads: int = HEADS) -> Any:
    layer = keras.layers.MultiHeadAttention(heads, width // heads, kernel_initializer=initializer)
    layer.build((None, None, width), (None, None, width))
    return layer


def grouped() -> Any:
    layer = keras.layers.GroupQueryAttention(WIDTH // HEADS, HEADS, 2)
    layer.build(_SHAPE, _SHAPE)
    return layer


class ConvolutionGlorot(keras.initializers.Initializer):
    """Glorot's law with the fans of version 3.14.0: all axes but the last two are the kernel's window."""

    def __call__(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
        window = math.prod(shape[:-2])
        bound = math.sqrt(6.0 / (window * (shape[-2] + shape[-1])))
        return keras.random.uniform(shape, -bound, bound, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {}


_FANS = Bug(
    name="fans of a convolution, 3.14.0",
    source="keras PR#22789",
    what="kernels of three axes were taken for convolutions: at n = 512, H = 8 scores have 1/1,296 of the variance",
    make=lambda: attention(width=LARGE_WIDTH, heads=LARGE_HEADS),
    width=LARGE_WIDTH,
    declared={"query_std": 1.0, "key_std": 1.0},
    sentence=(
        f"{QUERY}|{KEY}|scores",
        r"\b0\.16[67]\d*|\b1/1,?29\d|\b1/1,?30\d|\b0\.0007\d*|\b7\.7\d*e-0?4|\b0\.02[78]\d*|\b1/36\b",
    ),
    environment="old",
)

BUGS = (
    _FANS,
    dataclasses.replace(
        _FANS,
        name="fans of a convolution, rebuilt",
        make=lambda: attention(ConvolutionGlorot(), LARGE_WIDTH, LARGE_HEADS),
        environment="new",
    ),
    Bug(
        name="an initialiser with a seed",
        source="keras 3.14, 3.15.1",
        what="queries, keys and values are drawn by copies of one initialiser with one seed",
        make=lambda: attention(keras.initializers.GlorotUniform(seed=1)),
        width=WIDTH,
        sentence=(QUERY, KEY, VALUE, SAME),
    ),
    Bug(
        name="groups in the fan",
        source="keras, GroupQueryAttention",
        what="Glorot's fan-out counts the groups, so that the size of keys depends on their number",
        make=grouped,
        width=WIDTH,
        declared={"key_std": 1.0},
        sentence=(KEY, r"\b1\.1[4-7]\d*", r"glorot|xavier|fan[-_ ]?out|\bfans\b|\bgroups?\b|\b96\b"),
    ),
)

_ALL = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 1.0)

RIGHT = (
    Right(
        name="keras MultiHeadAttention", make=attention, width=WIDTH, declared={**_ALL, "mask": "none", "scale": 0.25}
    ),
    Right(
        name="keras EinsumDense, attention of one tensor",
        make=lambda: one_tensor(WIDTH, HEADS),
        width=WIDTH,
        call=plain,
        declared={"mask": "none", "scale": 0.25, "num_heads": HEADS},
    ),
)
ZOO = (RIGHT[0], Right(name="keras GroupQueryAttention", make=grouped, width=WIDTH))
