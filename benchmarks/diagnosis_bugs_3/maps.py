"""Public bugs in masks and in attention weights, given the scores."""

import numpy as np

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs import parts
from benchmarks.diagnosis_bugs.parts import FloatArray, attention, draw, reported
from benchmarks.diagnosis_bugs_3.layers import NOT_WEIGHT, SMALLER, softmax, where, without

_MAP = r"softmax|attention (weight|map)|\brows?\b"


@reported(
    "https://github.com/Dao-AILab/flash-attention/pull/2174",
    "Online softmax does not rescale its sums when the running maximum rises: key j is weighted exp(P_ij - max to j)",
    (
        (NOT_WEIGHT, r"online|running max|rescal"),
        (
            NOT_WEIGHT,
            _MAP,
            r"maxim|earlier keys|first keys|too even|flat|more uniform|closer to (equal|uniform)",
        ),
        (NOT_WEIGHT, r"softmax of|softmax", r"not (the )?softmax|instead of (the )?softmax|another map|other map"),
    ),
    softmax,
)
def running_maximum(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def attend(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        masked = np.where(parts.seen(layer), scores, -np.inf)
        weights = np.exp(masked - np.maximum.accumulate(masked, axis=-1))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=attend)


@reported(
    "https://github.com/megvii-research/FQ-ViT/issues/21",
    "Attention weights are quantised to powers of two, and rows no longer sum to 1",
    (
        (NOT_WEIGHT, _MAP, r"quanti|round|powers? of (two|2)|log2|precision|\bbits?\b|discret|coarse|levels"),
        (NOT_WEIGHT, _MAP, r"\bsum\b|add up|normali[sz]", r"\bnot\b|n't|other than|random|differ", without("draws")),
    ),
    softmax,
)
def powers_of_two(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def attend(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        weights = parts.attend(layer, scores)
        return np.where(weights > 0.0, 2.0 ** np.round(np.log2(np.maximum(weights, 1e-300))), 0.0)

    return attention(layer, inputs, draw(layer, inputs, rng), attend=attend)


@reported(
    "https://github.com/PetrochukM/PyTorch-NLP/issues/2",
    "Softmax runs over the batch: the weights of a pair of positions sum to 1 over draws",
    (
        (NOT_WEIGHT, r"softmax|attention|normali[sz]", r"(over|across|along) (the )?(draws|batch|samples)"),
        (NOT_WEIGHT, r"softmax|attention (weights|map)", r"wrong (axis|dimension)", without("quer|key|head")),
        (NOT_WEIGHT, _MAP, r"\bsum\b|add up|normali[sz]", r"\bnot\b|n't|other than|less|near 0|small"),
        (NOT_WEIGHT, _MAP, rf"{SMALLER}|vanish|near 0|almost 0"),
    ),
    softmax,
)
def softmax_over_draws(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def attend(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return parts.attend(layer, scores, axes=(0,))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=attend)


@reported(
    "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/16",
    "A padding mask is broadcast over keys, not queries: the last position attends to all keys equally",
    (
        (
            NOT_WEIGHT,
            r"last|one position|padd|some (rows|positions|queries)|one row|a row",
            r"uniform|equal|averag|1/s|all keys|masked",
            without("draw|last key|next"),
        ),
        (NOT_WEIGHT, r"padd", r"mask|position|quer", without("key")),
    ),
    softmax,
)
def row_is_masked(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def attend(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        masked = scores.copy()
        masked[..., -1, :] = -1e10
        return parts.attend(layer, masked)

    return attention(layer, inputs, draw(layer, inputs, rng), attend=attend)


@reported(
    "https://github.com/octo-models/octo/issues/75",
    "The causal mask is off by one: position i attends to i + 1",
    (
        (
            r"mask|attend|\bsees?\b|\bseen\b|causal",
            r"off by one|next|i ?\+ ?1|one (more|too many|further|position)|shift|one (ahead|future)",
            without("no causal|no mask|score|value|window"),
        ),
    ),
    where(lambda layer: layer.mask == "causal" and layer.seq_len > 2, "the bug needs a causal mask of three positions"),
)
def sees_next_position(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def attend(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        everything = np.ones((layer.seq_len, layer.seq_len), dtype=bool)
        return parts.attend(layer, scores, np.tril(everything, 1))

    return attention(layer, inputs, draw(layer, inputs, rng), attend=attend)


@reported(
    "https://github.com/PlaytikaOSS/tft-torch/issues/10",
    "Attention weights are averaged over heads before they multiply the values: all heads use the mean",
    (
        (
            NOT_WEIGHT,
            r"head",
            r"weights|attention|softmax",
            r"averag|\bmean|pooled|mixed across heads",
            without("draw"),
        ),
        (NOT_WEIGHT, r"heads", r"attention (weights|map)|softmax", r"\bsame|share|equal|common", without("draw")),
    ),
    where(lambda layer: layer.num_heads > 1 and layer.seq_len > 1, "the bug needs two heads and two positions"),
)
def heads_averaged(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    def attend(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        weights = parts.attend(layer, scores)
        return np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)

    return attention(layer, inputs, draw(layer, inputs, rng), attend=attend)
