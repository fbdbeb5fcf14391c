"""Public bugs in inputs, queries, keys and scores."""

import numpy as np

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs import parts
from benchmarks.diagnosis_bugs.parts import SAME, FloatArray, Weights, attention, draw, reported
from benchmarks.diagnosis_bugs_3.layers import LARGER, NOT_VALUE, NOT_WEIGHT, SMALLER, plain, positions, where, without

Projected = tuple[FloatArray, FloatArray, FloatArray]
_NOT_LATER = without("score|weights|quer|key|value|output|head")
_NOT_SHIFT = without("shift|itself|diagonal|distance|uniform|equally|ALiBi|slope|bias|position vector")


def _encoding(rows: int, n: int) -> FloatArray:
    """Return sinusoidal encodings, (rows, n)."""
    f = np.arange(n)
    angles = np.arange(rows)[:, None] * 10000.0 ** (-(f - f % 2) / n)
    return np.asarray(np.where(f % 2 == 0, np.sin(angles), np.cos(angles)))


@reported(
    "https://github.com/songyangco/GETNext/issues/2",
    "The positional encoding is added along the batch: all positions of a draw get the encoding of the draw's index",
    (
        (r"\binputs?\b|embedding", r"encoding|vector|constant|added|offset|shift|mean|common|correlat", _NOT_LATER),
        (r"\binputs?\b", LARGER, _NOT_LATER),
        (r"\binputs?\b", SAME, _NOT_LATER),
        (r"position(al)? (encoding|vector|embedding)", without("rotary|score|bias")),
    ),
    plain,
)
def encoding_by_draw(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    encoded = inputs + _encoding(len(inputs), layer.width)[:, None]
    return attention(layer, encoded, draw(layer, inputs, rng))


@reported(
    "https://github.com/Graylab/DL4Proteins-notebooks/issues/12",
    "Scores are divided by the square root of the width, not of head_dim",
    (
        (
            NOT_WEIGHT,
            r"score",
            rf"{SMALLER}|divided|scal",
            without(rf"by n\b|by ν\b|not divided|{LARGER}|position|softcap"),
        ),
        (NOT_WEIGHT, r"score", r"\bwidth\b|√n\b|sqrt\(n\)|embedding", without(r"instead of √n|not divided|by n\b")),
    ),
    where(lambda layer: layer.head_width < layer.width, "the bug needs heads narrower than the layer"),
)
def scaled_by_width(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def score(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        return np.asarray(parts.score(layer, queries, keys) * (layer.head_width / layer.width) ** 0.5)

    return attention(layer, inputs, draw(layer, inputs, rng), score=score)


@reported(
    "https://github.com/hpcaitech/ColossalAI/pull/6429",
    "A fused kernel mixes up halves: queries and keys are both the first half of the query and the second of the key",
    (
        (NOT_VALUE, r"quer|\bW_?\^?Q\b", r"key|\bW_?\^?K\b", rf"{SAME}|crossed|half|halves", without("head")),
        (NOT_VALUE, r"score", r"mean|positive", r"diagonal|own position|itself|i = j"),
        (NOT_VALUE, r"\bW_?\^?Q = \bW_?\^?K\b"),
    ),
    where(lambda layer: layer.head_width > 1, "the bug needs two neurons per head"),
)
def crossed_halves(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def project(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = parts.project(layer, inputs, weights)
        half = layer.head_width // 2
        both = np.concatenate([queries[..., :half], keys[..., half:]], axis=-1)
        return both, both, values

    return attention(layer, inputs, draw(layer, inputs, rng), project=project)


@reported(
    "https://github.com/microsoft/Swin-Transformer/issues/373",
    "Cosine attention normalises along an axis of length 1: every entry of queries and keys becomes 1 or -1",
    (
        (
            NOT_VALUE,
            r"quer",
            r"key",
            r"normali[sz]|\bnorm\b|signs?\b|±\s*1|unit|binary|quanti|one bit|1 bit|length|cosine",
        ),
        (NOT_VALUE, r"cosine|signs? of (the )?quer"),
    ),
    plain,
)
def signs_only(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def project(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = parts.project(layer, inputs, weights)
        return np.sign(queries), np.sign(keys), values

    return attention(layer, inputs, draw(layer, inputs, rng), project=project)


@reported(
    "https://github.com/flagos-ai/FlagGems/pull/424",
    "The kernel multiplies the score scale by log2(e) again for every further block of two keys",
    (
        (
            NOT_VALUE,
            NOT_WEIGHT,
            r"score|key",
            r"position|block|column|later|last",
            rf"{LARGER}|grow|increas|scale|factor",
            _NOT_SHIFT,
        ),
        (NOT_VALUE, NOT_WEIGHT, r"score", LARGER, _NOT_SHIFT, without("divided by|mean")),
        (NOT_VALUE, r"score", r"log2"),
    ),
    where(lambda layer: layer.seq_len > 2, "the bug needs two blocks of keys"),
)
def growing_scale(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def score(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        return np.asarray(parts.score(layer, queries, keys) * np.log2(np.e) ** (np.arange(layer.seq_len) // 2))

    return attention(layer, inputs, draw(layer, inputs, rng), score=score)


@reported(
    "https://github.com/meta-pytorch/attention-gym/pull/86",
    "An ALiBi bias is added with the wrong sign: slope times i - j, so that keys further back score higher",
    (
        (r"ALiBi|slope", without("ramp of values")),
        (NOT_WEIGHT, r"\bbias", r"distance|position|score|i - j", without("key|output|value")),
        (NOT_WEIGHT, r"score", r"distance|i - j|further|far\b", without("random|rotary|rotat|factor|window")),
    ),
    positions,
)
def distance_rewarded(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    H, position = layer.num_heads, np.arange(layer.seq_len)
    slopes = 2.0 ** (-8.0 * np.arange(1, H + 1) / H)
    bias = slopes[:, None, None] * (position[:, None] - position)

    def score(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        return parts.score(layer, queries, keys) + bias

    return attention(layer, inputs, draw(layer, inputs, rng), score=score)


@reported(
    "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/185",
    "Scores are shifted as relative positions are, dropping the wrong end: the diagonal is 0, rows move right by one",
    (
        (
            r"score",
            r"shift|\brolled|next|previous|neighbour|wrong (position|entry|entries|key)",
            without("mean|later|bias"),
        ),
        (r"score", r"diagonal|own position|itself|i = j", r"\bzero\b|\b0\b|vanish|missing"),
    ),
    positions,
)
def shifted_scores(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def score(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
        P = parts.score(layer, queries, keys)
        N, H, s, _ = P.shape
        padded = np.concatenate([np.zeros((N, H, s, 1)), P], axis=-1)
        return padded.reshape(N, H, s + 1, s)[:, :, :-1]

    return attention(layer, inputs, draw(layer, inputs, rng), score=score)


@reported(
    "https://github.com/vllm-project/vllm/pull/12342",
    "The bias of the keys, which the layer lacks, is whatever memory held: a vector added to all keys of a head",
    (
        (
            NOT_VALUE,
            r"\bkeys?\b|\bW_?\^?K\b",
            r"\bbias|constant|added|offset|common|mean|longer",
            without(r"\bW_?\^?Q\b|group|ALiBi"),
        ),
        (
            NOT_VALUE,
            r"score",
            r"\brow|quer",
            r"\badd|bias|offset|term|correlat|shared?|common",
            without("distance|ALiBi"),
        ),
    ),
    plain,
)
def key_bias_from_memory(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    bias = rng.standard_normal((len(inputs), layer.kv_heads, 1, layer.head_width))

    def project(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        queries, keys, values = parts.project(layer, inputs, weights)
        return queries, keys + np.repeat(bias, layer.group_size, axis=1), values

    return attention(layer, inputs, draw(layer, inputs, rng), project=project)


@reported(
    "https://github.com/onnx/onnx/pull/7274",
    "Grouped keys and values are tiled instead of repeated: head a uses group a mod G, not its consecutive group",
    (
        (r"group", r"tile|interleav|order|consecutive|\bmod\b|wrong|stride|another|other"),
        (
            r"heads",
            r"share|same",
            r"wrong|other|not the|consecutive",
            r"key|\bW_?\^?K\b",
            without("all heads|every head|draw"),
        ),
    ),
    where(lambda layer: 1 < layer.kv_heads < layer.num_heads, "the bug needs several groups of several heads"),
)
def groups_tiled(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def project(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> Projected:
        x = inputs[:, None]
        keys, values = (np.tile(x @ W, (1, layer.group_size, 1, 1)) for W in (weights.key, weights.value))
        return x @ weights.query, keys, values

    return attention(layer, inputs, draw(layer, inputs, rng), project=project)
