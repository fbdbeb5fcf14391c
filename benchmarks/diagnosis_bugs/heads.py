"""Heads split, shared or merged wrongly."""

from __future__ import annotations

import numpy as np

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs.parts import (
    SAME,
    FloatArray,
    Weights,
    attend,
    attention,
    draw,
    merge,
    project,
    reported,
    score,
    told,
)

Projected = tuple[FloatArray, FloatArray, FloatArray]

_MIXED = (
    r"mixed|mixes|reshape|\bview|transpos|scrambled|wrong (rows|positions|heads)|other positions|regroup|permut|swapped"
)


def _sliced(layer: AttentionLayer) -> bool | str:
    if layer.num_heads == 1:
        return "one head has one projection"
    fits = layer.num_heads * layer.head_width == layer.width and layer.num_kv_heads is None
    return (fits and not layer.tied_query_key) or "the input cannot be cut into a slice for each head"


@reported(
    "https://github.com/pbloem/former/issues/13",
    "every head projects its slice of the input with the same small W_Q, W_K, W_V",
    (
        (r"heads", SAME),
        (r"heads?", r"slice|part of (the|each) input|piece|chunk|split"),
        (r"input", r"slice|only (a )?part|some (of the )?neurons|not all"),
    ),
    _sliced,
)
def shared_by_slices(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    N, s, H, nu = len(inputs), layer.seq_len, layer.num_heads, layer.head_width
    slices = inputs.reshape(N, s, H, nu).swapaxes(1, 2)
    stds = (layer.query_std, layer.key_std, layer.value_std)
    queries, keys, values = (slices @ (rng.standard_normal((N, 1, nu, nu)) * (std / np.sqrt(nu))) for std in stds)
    scores, output = score(layer, queries, keys), draw(layer, inputs, rng).output
    return told(merge(layer, attend(layer, scores) @ values, output), scores, keys, values)


def _several(layer: AttentionLayer) -> bool | str:
    if layer.num_kv_heads is not None:
        return "keys and values of groups would be viewed in another way"
    return (layer.num_heads > 1 and layer.seq_len > 1) or "with one head or one position the view is right"


def _viewed(x: FloatArray) -> FloatArray:
    """View (N, H, s, ν), stored as (N, s, H, ν), without a transpose."""
    return x.swapaxes(1, 2).reshape(x.shape)


@reported(
    "https://github.com/reczoo/FuxiCTR/issues/30",
    "heads are split with a view and no transpose: a head gets some positions of all heads",
    (
        (r"heads?|position|quer|key", _MIXED),
        (r"heads?", r"positions?", r"split|swap|axis|order|wrong|instead|in place"),
        (r"scores?", r"same (input|position)|other position|wrong position|across heads|between heads"),
    ),
    _several,
)
def split_by_view(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def viewed(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = project(layer, inputs, weights)
        return _viewed(queries), _viewed(keys), _viewed(values)

    def merged(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        N, H, s, nu = heads.shape
        return merge(layer, heads.reshape(N, s, H, nu).swapaxes(1, 2), output)

    return attention(layer, inputs, draw(layer, inputs, rng), project=viewed, merge=merged)


@reported(
    "https://github.com/jsbaan/transformer-from-scratch/pull/6",
    "the heads are merged with a reshape and no permute: a position gets other positions' outputs of one head",
    (
        (r"heads?|position|output|value", _MIXED),
        (r"outputs?|\by\b", r"other positions?|wrong positions?|positions? of (one|a) head|order of positions"),
        (r"outputs?|attention|\bA\b", r"positions?", r"not (its|their) own|another"),
    ),
    lambda layer: (layer.num_heads > 1 and layer.seq_len > 1) or "with one head or one position the reshape is right",
)
def merged_by_reshape(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def merged(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        N, H, s, nu = heads.shape
        return merge(layer, heads.reshape(N, s, H, nu).swapaxes(1, 2), output)

    return attention(layer, inputs, draw(layer, inputs, rng), merge=merged)


@reported(
    "https://github.com/onnx/onnx/pull/7274",
    "keys and values of groups are tiled (0, 1, 0, 1) where they should be repeated (0, 0, 1, 1)",
    (
        (r"group|kv|keys?|values?|heads", r"tile|interleav|repeat|\border\b|modulo|consecutive|alternat|neighbou?r"),
        (r"group", r"wrong|other heads|not the heads|which heads|mapp|assign"),
        (r"heads", r"0, ?1, ?0, ?1|share", r"group|key|W[_^{]*K"),
    ),
    lambda layer: 1 < layer.kv_heads < layer.num_heads or "with one group, or one for each head, both are the same",
)
def tiled_groups(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def tiled(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        x, repeats = inputs[:, None], (1, layer.group_size, 1, 1)
        return x @ weights.query, np.tile(x @ weights.key, repeats), np.tile(x @ weights.value, repeats)

    return attention(layer, inputs, draw(layer, inputs, rng), project=tiled)
