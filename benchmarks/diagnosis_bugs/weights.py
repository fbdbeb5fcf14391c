"""Weights and projections that differ from the declaration."""

from __future__ import annotations

import numpy as np

from attncheck import AttentionLayer
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

_OUT = r"W[_^{]*O\b|out_proj|output (weight|matri|proj)|output_std"
# bfloat16's uniform number next to its lower end, and the clamped value.
_STUCK, _BOUND = 1 / 256, -2.0


def _narrow(layer: AttentionLayer) -> bool | str:
    return layer.head_width != layer.width or "the head's width is the layer's"


@reported(
    "https://github.com/clankur/einygpt/pull/3",
    "W_Q, W_K and W_V are scaled by the head's width in place of the model's",
    (
        (r"W[_^{]*Q|quer", SCALE),
        (r"W[_^{]*K|key", SCALE),
        (r"W[_^{]*V|value", SCALE),
        (r"head_dim|head's width|width of (a|the) head", r"fan|scale|width"),
    ),
    _narrow,
)
def fan_of_head(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W, wrong = draw(layer, inputs, rng), np.sqrt(layer.width / layer.head_width)
    return attention(layer, inputs, Weights(W.query * wrong, W.key * wrong, W.value * wrong, W.output))


def _far_bound(layer: AttentionLayer) -> bool | str:
    largest = max(layer.query_std, layer.key_std, layer.value_std) / np.sqrt(layer.width)
    within = max(largest, layer.output_std / np.sqrt(layer.head_width)) <= -_BOUND / 4
    return bool(within) or "the bounds of ±2 would cut the normal law"


@reported(
    "https://github.com/pytorch/torchtitan/issues/2269",
    "trunc_normal_ in bfloat16: one weight in 256 sits at the lower bound of -2",
    (
        (
            r"W[_^]|weight|matri|entries",
            r"heavy|tail|outlier|not (normal|gaussian)|bound|\blaws?\b|distribution|skew|mean",
        ),
        (r"W[_^]|matri|quer|keys|values", SCALE),
        (r"not gaussian|not normal|heav(y|ier)|outlier",),
    ),
    _far_bound,
)
def stuck_at_bound(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    stuck = Weights(*(np.where(rng.random(matrix.shape) < _STUCK, _BOUND, matrix) for matrix in W))
    if layer.tied_query_key:
        stuck = stuck._replace(key=stuck.query)
    return attention(layer, inputs, stuck)


@reported(
    "https://github.com/pytorch/pytorch/issues/57117",
    "W_O keeps the default of a linear layer, of a third of the variance",
    ((_OUT, SCALE), (_OUT, r"0\.57|0\.58|1/3|0\.33|third"), (r"outputs?", r"0\.57|0\.58|0\.33|third", SCALE)),
)
def default_output(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    return attention(layer, inputs, W._replace(output=W.output / np.sqrt(3.0)))


@reported(
    "https://github.com/pytorch/pytorch/issues/52545",
    "the output projection has a bias that is not zero: a linear layer's default",
    (
        (r"\bbias",),
        (r"output|\by\b", r"constant|offset|shift|added|common"),
        (r"output|positions", r"common|shared?|same", r"term|vector|part|added"),
    ),
)
def default_bias(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    arrays = attention(layer, inputs, draw(layer, inputs, rng))
    N, _, shown = arrays["outputs"].shape
    bound = (layer.num_heads * layer.head_width) ** -0.5
    return arrays | {"outputs": arrays["outputs"] + rng.uniform(-bound, bound, (N, 1, shown))}


@reported(
    "https://github.com/Kyubyong/transformer/issues/53",
    "queries, keys and values go through a ReLU after their projections",
    (
        (r"relu|rectif",),
        (r"quer|key|value|score", r"positive|negative"),
        (r"quer|key|score", r"\bmeans?\b"),
    ),
)
def relu_projections(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def rectified(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = project(layer, inputs, weights)
        return np.maximum(queries, 0.0), np.maximum(keys, 0.0), np.maximum(values, 0.0)

    return attention(layer, inputs, draw(layer, inputs, rng), project=rectified)


def _own_keys(layer: AttentionLayer) -> bool | str:
    if layer.tied_query_key:
        return "the layer declares it"
    return layer.kv_heads == layer.num_heads or "queries and keys have matrices of different shapes"


@reported(
    "https://github.com/NVIDIA/Megatron-LM/issues/135",
    "W_Q and W_K are drawn from one state of the generator: they are the same matrix",
    (
        (r"W[_^{]*Q|quer", r"W[_^{]*K|key", SAME),
        (r"tied", r"quer|key|W[_^]"),
        (r"scores?", r"symmetric"),
    ),
    _own_keys,
)
def same_query_key(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    return attention(layer, inputs, W._replace(key=W.query * (layer.key_std / layer.query_std)))


@reported(
    "https://github.com/yflyzhang/AnnotatedTransformer/issues/1",
    "the values are made with W_K in place of W_V",
    (
        (r"W[_^{]*V|value", r"W[_^{]*K|key", SAME),
        (r"W[_^{]*V|value", r"W[_^{]*K|key", r"in place of|instead|are the|made (with|of|from)|used as"),
        (r"no W[_^{]*V|W[_^{]*V (is )?(missing|not used|unused)",),
    ),
)
def value_by_key(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    return attention(layer, inputs, W._replace(value=W.key))


def _concatenated(layer: AttentionLayer) -> bool | str:
    fits = layer.num_heads * layer.head_width == layer.width and layer.num_kv_heads is None
    return fits or "the heads together are not as wide as the layer"


@reported(
    "https://github.com/Kyubyong/transformer/issues/117",
    "the heads are concatenated and returned: there is no W_O",
    (
        (_OUT, r"missing|not applied|\bno (W[_^{]*O|output)|skipped|identity|left out|without|absent|not drawn"),
        (r"one head|single head|first head|head of its own", r"output|neuron|\by\b"),
        (r"heads", r"concatenated|not (summed|mixed|added)"),
    ),
    _concatenated,
)
def no_output_projection(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def concatenated(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        N, _, s, _ = heads.shape
        return heads.swapaxes(1, 2).reshape(N, s, -1)[..., : output.shape[-1]]

    return attention(layer, inputs, draw(layer, inputs, rng), merge=concatenated)
