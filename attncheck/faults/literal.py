"""A small literal simulator whose every step can be replaced: what wrong wirings are made of.

X W of any number of n × ν matrices W has the law of F Ω, F the root of X Xᵀ/n and Ω of independent N(0, 1)
entries (s × ν), whatever is shared: sharing a matrix is using one Ω twice. So no n × n array is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import AttentionLayer
from attncheck.attention_map import attention_weights
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.linalg import gram_root

FloatArray = NDArray[np.float64]
Projected = tuple[FloatArray, FloatArray, FloatArray]


def independent(layer: AttentionLayer, root: FloatArray, rng: np.random.Generator) -> Projected:
    """Return X W_Q, X W_K and X W_V for matrices of unit standard deviation, each (draws, heads, s, ν)."""

    def project(matrices: int) -> FloatArray:
        normals = rng.standard_normal((len(root), matrices, layer.seq_len, layer.head_width))
        return np.asarray(root[:, None] @ normals)

    keys, values = (np.repeat(project(layer.kv_heads), layer.group_size, axis=1) for _ in range(2))
    return project(layer.num_heads), keys, values


def dot_products(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
    """Return the scores of queries and keys (draws, heads, s, ν)."""
    return layer.score_factor * layer.head_width**-0.5 * (queries @ keys.swapaxes(-1, -2))


def project_out(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
    """Apply W_O of unit standard deviation to the heads' mixed values (draws, heads, s, ν), and add them up."""
    matrices = rng.standard_normal((*mixed.shape[:2], layer.head_width, coordinates))
    return np.asarray(layer.head_factor * layer.head_width**-0.5 * (mixed @ matrices).sum(axis=1))


@dataclasses.dataclass(frozen=True)
class Literal:
    """A simulator made of replaceable steps; the defaults are right.

    Attributes
    ----------
    project : callable
        Inputs' root to the queries, keys and values at unit standard deviation.
    score : callable
        Queries and keys to scores.
    weigh : callable
        Scores to attention weights.
    apart : bool
        Whether scores see inputs drawn apart from those that the values see.
    """

    project: Callable[[AttentionLayer, FloatArray, np.random.Generator], Projected] = independent
    score: Callable[[AttentionLayer, FloatArray, FloatArray], FloatArray] = dot_products
    weigh: Callable[[AttentionLayer, FloatArray], FloatArray] = attention_weights
    apart: bool = False

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw inputs, and everything that the layer makes of them."""
        inputs = draw_inputs(layer, size, rng)
        queries, keys, values = self.project(layer, gram_root(gram(inputs)), rng)
        if self.apart:
            others = gram_root(gram(draw_inputs(layer, size, rng)))
            queries, keys, _ = self.project(layer, others, rng)
        queries, keys, values = layer.query_std * queries, layer.key_std * keys, layer.value_std * values
        scores = self.score(layer, queries, keys)
        coordinates = min(layer.width, 2)
        return {
            "outputs": layer.output_std
            * project_out(layer, self.weigh(layer, scores) @ values, coordinates, rng),
            "scores": scores,
            "inputs": inputs[:, :, :coordinates].copy(),
            "input_gram": gram(inputs),
            "key_gram": gram(keys),
            "value_gram": gram(values),
        }


def gram(vectors: FloatArray) -> FloatArray:
    """Return the Gram matrices of (..., s, m) vectors, divided by m."""
    return np.asarray(vectors @ vectors.swapaxes(-1, -2) / vectors.shape[-1])
