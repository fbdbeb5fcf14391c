"""Weights and projections that differ from the declaration."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from attncheck import AttentionLayer
from attncheck.layers.nonlinearity import of_inputs
from benchmarks.diagnosis_bugs.parts import (
    SAME,
    SCALE,
    FloatArray,
    Weights,
    attention,
    draw,
    project,
    reported,
)

Projected = tuple[FloatArray, FloatArray, FloatArray]

_OUT = r"W[_^{]*O\b|out_proj|c_proj|output (weight|matri|proj)|output_std"
_QUERY, _KEY, _VALUE = r"W[_^{]*Q|quer", r"W[_^{]*K|key", r"W[_^{]*V|value"
# Layers of the smallest GPT-2: √(2 · layers) divides W_O's initial scale.
_DEPTH = 12
# Inputs with mean and variance this close to 0 and 1 are already normalised.
_NORMAL = 0.1


@reported(
    "https://github.com/pytorch/pytorch/issues/166378",
    "Xavier's fan-out is of the packed (3n, n) matrix: W_Q, W_K and W_V have half of the variance",
    (
        (_QUERY, SCALE),
        (_KEY, SCALE),
        (_VALUE, SCALE),
        (r"packed|in_proj|qkv|three matrices", SCALE),
    ),
)
def packed_fan(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W, wrong = draw(layer, inputs, rng), math.sqrt(0.5)
    return attention(layer, inputs, Weights(W.query * wrong, W.key * wrong, W.value * wrong, W.output))


@reported(
    "https://github.com/huggingface/transformers/issues/47458",
    "W_O is not divided by the root of twice the number of layers, here 12: a name is compared that never matches",
    (
        (_OUT, SCALE),
        (r"outputs?|\by\b", r"4\.9|√24|sqrt\(24\)|number of layers|depth", SCALE),
    ),
)
def depth_scale_lost(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    return attention(layer, inputs, W._replace(output=W.output * math.sqrt(2 * _DEPTH)))


def _own(layer: AttentionLayer) -> bool | str:
    if layer.tied_query_key:
        return "the layer declares a part of it"
    return layer.kv_heads == layer.num_heads or "queries and keys have matrices of different shapes"


@reported(
    "https://github.com/Khaliladib11/Transformer-from-scratch/issues/1",
    "queries, keys and values all go through the keys' matrix",
    (
        (_QUERY, _KEY, SAME),
        (_VALUE, _KEY, SAME),
        (_QUERY + "|" + _VALUE, _KEY, r"in place of|instead|are the|made (with|of|from)|used (as|for)"),
        (r"tied", r"quer|key|value|W[_^]"),
        (r"one|single|same", r"matrix|projection", r"\ball\b|three|both"),
        (r"scores?", r"symmetric"),
    ),
    _own,
)
def one_matrix(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    return attention(layer, inputs, W._replace(query=W.key, value=W.key))


@reported(
    "https://github.com/google/flax/pull/2665",
    "one random key draws the matrices of all heads: all heads have the same W_Q, W_K and W_V",
    (
        (r"heads", SAME),
        (r"heads", r"seed|random (key|state|number)|generator|stream|one draw|drawn once|repeated|reused"),
    ),
    lambda layer: layer.num_heads > 1 or "there is one head",
)
def heads_alike(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    query, key, value = (np.broadcast_to(x[:, :1], x.shape) for x in (W.query, W.key, W.value))
    return attention(layer, inputs, Weights(query, key, value, W.output))


@reported(
    "https://github.com/hmdolatabadi/denoising_diffusion/issues/1",
    "the weighted sum is of the inputs: the values are never used",
    (
        (
            _VALUE,
            r"missing|not (used|applied|projected|multiplied|drawn)|unused|no (W|value|proj)|identity|\braw\b|skipped",
        ),
        (r"values?", r"\binputs?\b", SAME + r"|themselves|are the|in place of|instead"),
        (r"values?", r"heads", SAME),
    ),
    lambda layer: layer.head_width == layer.width or "inputs are not as wide as values",
)
def raw_values(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def unprojected(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = project(layer, inputs, weights)
        return queries, keys, np.broadcast_to(inputs[:, None], values.shape)

    return attention(layer, inputs, draw(layer, inputs, rng), project=unprojected)


def _not_normal(layer: AttentionLayer) -> bool | str:
    x = of_inputs(layer.inputs)(layer.inputs.hidden_std * ndtri((np.arange(1000) + 0.5) / 1000))
    normal = abs(x.mean()) <= _NORMAL and abs(x.var() - 1.0) <= _NORMAL
    return "one neuron has no norm" if layer.width == 1 else not normal or "the inputs are normal already"


@reported(
    "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/142",
    "a layer norm inside is applied to what queries are made of, and not to what keys and values are made of",
    (
        (r"layer ?norm|normali[sz]|\bnorms?\b", _QUERY),
        (r"\binputs?\b", r"layer ?norm|normali[sz]ed|cent(er|re)d"),
        (_QUERY, SCALE),
        (_QUERY, r"cent(er|re)d|mean|other inputs?|another input|different inputs?"),
    ),
    _not_normal,
)
def normed_queries(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def normed(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        _, keys, values = project(layer, inputs, weights)
        centred = inputs - inputs.mean(axis=-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return normal[:, None] @ weights.query, keys, values

    return attention(layer, inputs, draw(layer, inputs, rng), project=normed)
