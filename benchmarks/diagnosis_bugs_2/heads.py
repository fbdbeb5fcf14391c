"""Heads shared or merged wrongly, and outputs changed afterwards."""

from __future__ import annotations

import numpy as np

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs.parts import (
    SAME,
    SCALE,
    FloatArray,
    attention,
    draw,
    merge,
    reported,
    score,
)

_OUT = r"W[_^{]*O\b|out_proj|output (weight|matri|proj)|output_std"
_DROPPED = 0.1


def _collapsing(layer: AttentionLayer) -> bool | str:
    if layer.kv_heads == 1:
        return "one head of keys and values has one index"
    if layer.group_size > layer.kv_heads:
        return "the wrong index is out of range"
    return layer.group_size < layer.kv_heads or "the wrong index is the right one"


@reported(
    "https://github.com/PSAL-POSTECH/ONNXim/pull/34",
    "a head's index is divided by the number of key heads, not by a group's size: heads share keys of others",
    (
        (r"heads|groups?", SAME, r"key|value|W[_^{]*[KV]|kv"),
        (r"heads|groups?", SAME),
        (r"group|kv|key heads?", r"wrong|index|mapp|assign|never|unused|not used|first|collaps"),
    ),
    _collapsing,
)
def groups_collapse(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    W = draw(layer, inputs, rng)
    wrong = np.arange(layer.kv_heads) * layer.group_size // layer.kv_heads
    return attention(layer, inputs, W._replace(key=W.key[:, wrong], value=W.value[:, wrong]))


def _heads(layer: AttentionLayer) -> bool | str:
    return layer.num_heads > 1 or "there is one head"


@reported(
    "https://github.com/kornia/kornia/issues/2186",
    "the heads are never split: one head, as wide as all together, attends, with the scale of a narrow one",
    (
        (r"heads", SAME, r"scores?|weights|attention|\bA\b|\bP\b|softmax"),
        (r"(one|single)( wide)? head\b", r"only|attends|instead|in place of|as wide|together|acts|there is|not split"),
        (r"scores?", r"heads", r"summed|\bsums?\b|added|together|mixed"),
        (r"heads", r"not (split|separated|independent)|never split|merged"),
    ),
    _heads,
)
def one_wide_head(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def together(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        scores = score(layer, queries, keys)
        return np.broadcast_to(scores.sum(axis=1, keepdims=True), scores.shape)

    return attention(layer, inputs, draw(layer, inputs, rng), score=together)


@reported(
    "https://github.com/awf/functional-transformer/issues/8",
    "the heads are summed as they are, not concatenated, and there is no W_O",
    (
        (_OUT, r"missing|not applied|\bno (W[_^{]*O|output)|skipped|identity|left out|without|absent|not drawn|unused"),
        (
            r"heads",
            r"summed|\bsums?\b|added",
            r"not (concat|merged|mixed|divided|scaled)|without|instead|in place of",
        ),
        (r"heads", r"not (divided|scaled|concatenated)|concatenat|1/√H|H\^|sqrt\(H\)|num_heads", SCALE + r"|sum"),
    ),
    lambda layer: layer.head_width == layer.width or "a head is not as wide as the layer",
)
def heads_summed(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def summed(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        return np.asarray(heads.sum(axis=1)[..., : output.shape[-1]])

    return attention(layer, inputs, draw(layer, inputs, rng), merge=summed)


@reported(
    "https://github.com/nikhilbarhate99/min-decision-transformer/issues/2",
    "dropout, 0.1, is of what the heads return, not of the attention weights, and is on",
    (
        (r"dropout|dropped",),
        (r"heads?|outputs?|values|neurons|context", r"random|noise|zeroed|set to 0|set to zero"),
    ),
)
def dropped_heads(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def dropped(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        kept = rng.random(heads.shape) >= _DROPPED
        return merge(layer, heads * kept / (1.0 - _DROPPED), output)

    return attention(layer, inputs, draw(layer, inputs, rng), merge=dropped)


@reported(
    "https://github.com/kyegomez/BitNet/issues/32",
    "the residual connection adds the outputs to themselves: x = attention(x), then x = x + x",
    (
        (_OUT, SCALE),
        (r"outputs?|\by\b|heads", r"doubl|twice|two times|\b(1\.9\d*|2(\.0\d*)?)\b"),
        (r"residual|skip connection",),
        (r"added to (itself|themselves)|added twice",),
    ),
)
def doubled_outputs(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    arrays = attention(layer, inputs, draw(layer, inputs, rng))
    return arrays | {"outputs": arrays["outputs"] + arrays["outputs"]}
