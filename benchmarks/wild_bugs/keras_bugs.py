"""Attention of keras."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import keras

from benchmarks.wild_bugs.bug import HEADS, KEY, QUERY, SAME, VALUE, WIDTH, bug, right
from benchmarks.wild_bugs.variants_keras import grouped, one_tensor, plain

#: Width and heads at which convolution fans are wrong by a factor of 36.
LARGE_WIDTH, LARGE_HEADS = 512, 8


def attention(initializer: Any = "glorot_uniform", width: int = WIDTH, heads: int = HEADS) -> Any:
    layer = keras.layers.MultiHeadAttention(heads, width // heads, kernel_initializer=initializer)
    layer.build((None, None, width), (None, None, width))
    return layer


class ConvolutionGlorot(keras.initializers.Initializer):
    """Glorot's law with the fans of version 3.14.0: all axes but the last two are the kernel's window."""

    def __call__(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
        window = math.prod(shape[:-2])
        bound = math.sqrt(6.0 / (window * (shape[-2] + shape[-1])))
        return keras.random.uniform(shape, -bound, bound, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {}


BUGS = (
    bug(
        "fans of a convolution",
        "keras PR#22789",
        "in 3.14.0 kernels of three axes were taken for convolutions: at n = 512, H = 8 scores have 1/1,296 of "
        "the variance",
        lambda: attention(ConvolutionGlorot(), LARGE_WIDTH, LARGE_HEADS),
        f"{QUERY}|{KEY}|scores",
        r"\b0\.16[67]\d*|\b1/1,?29\d|\b1/1,?30\d|\b0\.0007\d*|\b7\.7\d*e-0?4|\b0\.02[78]\d*|\b1/36\b",
        width=LARGE_WIDTH,
        declared={"query_std": 1.0, "key_std": 1.0},
    ),
    bug(
        "an initialiser with a seed",
        "keras 3.14, 3.15.1",
        "queries, keys and values are drawn by copies of one initialiser with one seed",
        lambda: attention(keras.initializers.GlorotUniform(seed=1)),
        QUERY,
        KEY,
        VALUE,
        SAME,
    ),
    bug(
        "groups in the fan",
        "keras, GroupQueryAttention",
        "Glorot's fan-out counts the groups, so that the size of keys depends on their number",
        partial(grouped, WIDTH, HEADS, 2),
        KEY,
        r"\b1\.1[4-7]\d*",
        r"glorot|xavier|fan[-_ ]?out|\bfans\b|\bgroups?\b|\b96\b",
        declared={"key_std": 1.0},
    ),
)

_ALL = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 1.0)

RIGHT = (
    right(
        "keras MultiHeadAttention",
        attention,
        declared={**_ALL, "mask": "none", "scale": 0.25},
    ),
    right(
        "keras EinsumDense, attention of one tensor",
        partial(one_tensor, WIDTH, HEADS),
        call=plain,
        declared={"mask": "none", "scale": 0.25, "num_heads": HEADS},
    ),
)
