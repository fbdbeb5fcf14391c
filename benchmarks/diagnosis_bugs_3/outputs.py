"""Public bugs in values, in the merge of heads and in what draws share."""

import numpy as np

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs import parts
from benchmarks.diagnosis_bugs.parts import FloatArray, Weights, attention, draw, reported
from benchmarks.diagnosis_bugs_3.layers import LARGER, NOT_OUTPUT, NOT_WEIGHT, positions, where, without
from benchmarks.diagnosis_bugs_3.layers import heads as several_heads

Projected = tuple[FloatArray, FloatArray, FloatArray]


@reported(
    "https://github.com/FlashML-org/FreeToken/pull/354",
    "Values are read from the buffer of queries, keys and values as if it held values only",
    (
        (
            NOT_OUTPUT,
            r"\bvalues?\b|\bW_?\^?V\b",
            r"\bquer|keys|\bW_?\^?[QK]\b",
            r"values? (are|is|were) .*(quer|keys)|copies|read|mixed|taken",
        ),
        (NOT_OUTPUT, r"\bvalues\b", r"\bquer|keys|score", r"correlat|dependent|not independent", without("heads|draw")),
        (
            NOT_OUTPUT,
            r"\bvalues?\b",
            r"shift|wrong position|other positions|read|buffer|pitch|stride",
            without("key|head|score"),
        ),
    ),
    where(
        lambda layer: layer.seq_len > 2 and layer.num_kv_heads is None, "the bug needs three positions, without groups"
    ),
)
def values_read_with_wrong_pitch(
    layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator
) -> dict[str, FloatArray]:
    def project(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        buffer = np.stack(parts.project(layer, inputs, weights), axis=3)
        N, H, s, _, nu = buffer.shape
        rows = buffer.reshape(N, H, 3 * s, nu)
        return buffer[..., 0, :], buffer[..., 1, :], rows[:, :, 2 : 2 + s]

    return attention(layer, inputs, draw(layer, inputs, rng), project=project)


@reported(
    "https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1",
    "Heads are merged with batch and head axes exchanged: an output sums heads of different draws",
    (
        (
            r"head",
            r"draws?\b|batch",
            r"mix|other|different|exchang|wrong|another|swap|merge|reshap|scrambl",
            without("cache"),
        ),
        (r"head|merge", r"reshap|transpos|\baxes|\baxis|scrambl|permut", without("softmax")),
        (r"draws|batch", r"\bmix|exchang|permut|shuffl|swap", without("weights|cache|\\bkey|value|quer")),
        (r"output", r"other draws?|another draw|unrelated to|do(es)? not depend on"),
    ),
    several_heads,
)
def heads_of_other_draws(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def merge(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        N, H, s, nu = heads.shape
        return parts.merge(layer, heads.reshape(H, N, s, nu).swapaxes(0, 1), output)

    return attention(layer, inputs, draw(layer, inputs, rng), merge=merge)


@reported(
    "https://github.com/qiuzh20/gated_attention/issues/1",
    "The output of each head is RMS-normalised before the output projection",
    (
        (
            r"head|output|before \bW_?\^?O",
            r"\bnorms?\b|normali[sz]|RMS|unit (length|size|variance)",
            without("quer|key|input|weights"),
        ),
        (NOT_WEIGHT, r"output|head", r"Gaussian", r"exactly|regardless|too"),
        (NOT_WEIGHT, r"output|\bheads?\b", LARGER, without("value|quer|key|score|input")),
    ),
    where(lambda layer: layer.head_width > 1, "the bug needs two neurons per head"),
)
def heads_normalised(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def merge(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        rms = np.sqrt((heads**2).mean(axis=-1, keepdims=True) + 1e-6)
        return parts.merge(layer, heads / rms, output)

    return attention(layer, inputs, draw(layer, inputs, rng), merge=merge)


@reported(
    "https://github.com/broadinstitute/CellCap/issues/40",
    "Heads are combined by their maximum instead of their sum",
    (
        (r"head|output", r"\bmax|largest", without("softmax|running")),
        (
            NOT_WEIGHT,
            r"output",
            r"\bmean\b|positive|skew|offset|asymmetr|\bbias",
            without("score|quer|key|value|input|residual"),
        ),
    ),
    several_heads,
)
def largest_head(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def merge(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
        return np.asarray((heads @ output).max(axis=1))

    return attention(layer, inputs, draw(layer, inputs, rng), merge=merge)


@reported(
    "https://github.com/Lightning-AI/litgpt/pull/1647",
    "The cache is not cleared: the first position has the keys and values of the draw before",
    (
        (
            r"key|value",
            r"draw|batch|cache|stale|call",
            r"other|another|previous|before|stale|not cleared|\bmix",
            without("quer|head"),
        ),
        (r"\bcache|\bstale",),
        (
            r"draws",
            r"previous|neighbour|consecutive|adjacent|next",
            r"depend|not independent|correlat",
            without("call|weights"),
        ),
    ),
    positions,
)
def first_position_cached(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def project(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = parts.project(layer, inputs, weights)
        for cached in (keys, values):
            cached[:, :, 0] = np.roll(cached[:, :, 0], 1, axis=0)
        return queries, keys, values

    return attention(layer, inputs, draw(layer, inputs, rng), project=project)
