"""Wrong scores, softmax and masks."""

from __future__ import annotations

import math

import numpy as np

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs.parts import SCALE, FloatArray, attend, attention, draw, reported, score, seen

_SOFTMAX = "only softmax normalises"
_DROPPED = 0.2


def _heads(layer: AttentionLayer) -> bool | str:
    return layer.num_heads > 1 or "with one head it is right"


@reported(
    "https://github.com/chelsea0x3b/dfdx/issues/171",
    "scores are divided by the root of all heads' width in place of one head's",
    ((r"scores?", SCALE), (r"head_dim|num_heads|heads", r"divided|scaled|sqrt|√")),
    _heads,
)
def scale_of_model(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    divisor, power = layer.num_heads * layer.head_width, -0.5 if layer.score_scaling == "1/sqrt(n)" else -1.0

    def scaled(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        return np.asarray(queries @ keys.swapaxes(-1, -2) * divisor**power)

    return attention(layer, inputs, draw(layer, inputs, rng), score=scaled)


def _noticed(layer: AttentionLayer) -> bool | str:
    if layer.attention_map in ("linear", "relu"):
        return "the scale goes through the map"
    return layer.head_width > 1 or "the scale is 1"


@reported(
    "https://github.com/FrancescoSaverioZuppichini/ViT/issues/2",
    "the scale multiplies the attention weights after the softmax, and not the scores before it",
    (
        (r"scores?", SCALE),
        (r"scores?", r"not (scaled|divided)|unscaled|without"),
        (r"after the (softmax|map)|attention weights|rows? sums?", SCALE + r"|sum"),
    ),
    _noticed,
)
def scale_after_softmax(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    scale = layer.head_width**-0.5 * layer.score_factor

    def raw(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        return np.asarray(score(layer, queries, keys) / scale)

    def late(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return np.asarray(attend(layer, scores) * scale)

    return attention(layer, inputs, draw(layer, inputs, rng), score=raw, attend=late)


@reported(
    "https://github.com/flagos-ai/FlagGems/pull/424",
    "the scale is multiplied by log2(e) at every block of keys, here of one key: later keys have larger scores",
    (
        (r"scores?|keys?|scale", r"position|column|later|grows?|increas|differ|depend|index|of key"),
        (r"scores?", SCALE),
    ),
    lambda layer: (layer.attention_map == "softmax" or _SOFTMAX) if layer.seq_len > 1 else "there is one key",
)
def growing_scale(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def grown(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        return np.asarray(score(layer, queries, keys) * math.log2(math.e) ** np.arange(layer.seq_len))

    return attention(layer, inputs, draw(layer, inputs, rng), score=grown)


def _of_several(layer: AttentionLayer) -> bool | str:
    if layer.seq_len == 1 or (layer.inputs.equal and layer.mask == "none"):
        return "the weights of one score, or of equal ones, are right over either axis"
    return layer.attention_map == "softmax" or _SOFTMAX


@reported(
    "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",
    "softmax is taken over the queries in place of the keys",
    (
        (r"softmax|normalis|normaliz|sums? to", r"quer|column|axis|transpos|first index|over i\b"),
        (r"columns|quer", r"sum"),
        (r"rows?|weights", r"not sum|sums? to (more|less|another)"),
    ),
    _of_several,
)
def softmax_over_queries(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def wrong(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return attend(layer, scores, axes=(-2,))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=wrong)


@reported(
    "https://github.com/facebookresearch/detr/issues/247",
    "softmax is taken over the keys of all heads together",
    (
        (r"softmax|normalis|normaliz|sums? to|attention weights", r"heads|1/H|axis"),
        (r"rows?|weights?|attention|outputs?", r"1/H|1/num_heads|divided by (the number of heads|H)"),
        (r"rows?|weights|\bA\b", r"sum", r"less|0\.5|half|1/2|not 1"),
    ),
    lambda layer: (layer.attention_map == "softmax" or _SOFTMAX) if layer.num_heads > 1 else "there is one head",
)
def softmax_over_heads(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def wrong(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return attend(layer, scores, axes=(1, -1))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=wrong)


@reported(
    "https://github.com/pytorch/pytorch/issues/124464",
    "dropout of the attention weights, 0.2, stays on when the layer is evaluated",
    (
        (r"dropout|dropped",),
        (r"attention (weights|map)|\bA\b", r"random|noise|zeroed|set to 0|set to zero"),
    ),
)
def dropout_stays_on(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def dropped(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        kept = rng.random(scores.shape) >= _DROPPED
        return np.asarray(attend(layer, scores) * kept / (1.0 - _DROPPED))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=dropped)


def _causal(layer: AttentionLayer) -> bool | str:
    return (layer.mask == "causal" and layer.seq_len > 1) or "nothing is masked"


@reported(
    "https://github.com/rasbt/LLMs-from-scratch/pull/1062",
    "the mask is inverted: a position attends to later ones only, the last one to none",
    (
        (r"mask|causal|attend", r"invert|revers|flip|later|future|upper|transpos|opposite|complement|wrong way"),
        (r"last position", r"zero|(is|are|exactly) 0|nothing|none"),
    ),
    _causal,
)
def mask_inverted(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def inverted(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return attend(layer, scores, ~seen(layer))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=inverted)


def _leaking(layer: AttentionLayer) -> bool | str:
    if layer.attention_map != "softmax":
        return "only before softmax are masked scores filled"
    return "values that are equal hide a leak" if layer.inputs.equal else _causal(layer)


@reported(
    "https://github.com/awslabs/gluonts/pull/1401",
    "masked scores are set to 1e-9, not to -1e9: a position attends to later ones as to a score of 0",
    (
        (
            r"mask|causal",
            r"missing|not applied|no mask|ignored|leak|later|future|score of 0|zero|without|fill|not causal",
        ),
        (r"attends?|sees?|depends?", r"later|future|masked|hidden"),
    ),
    _leaking,
)
def mask_near_zero(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def leaking(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        filled = np.where(seen(layer), scores, 1e-9)
        return attend(layer, filled, np.ones_like(seen(layer)))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=leaking)
