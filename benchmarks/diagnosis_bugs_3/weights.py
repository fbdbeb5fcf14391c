"""Public bugs in weights and their generators."""

import numpy as np

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs.parts import SAME, FloatArray, Weights, attention, draw, reported
from benchmarks.diagnosis_bugs_3.layers import NOT_MAP, NOT_OUTPUT, SMALLER, heads, plain, where, without

_ONLY_VALUES = without(r"quer|key|\bW_?\^?[QKO]\b|output (matri|weight|proj)")
_NOT_CALLS = without("calls?\\b|attention")


@reported(
    "https://github.com/SlopDotCash/asi/issues/130",
    "W_V is initialised sparse, and uniform with bound 1/sqrt(fan-in): half its entries are 0, a sixth of the variance",
    (
        (_ONLY_VALUES, r"value|\bW_?\^?V\b", rf"{SMALLER}|sparse|\bzeros?\b|\b0\b|missing|dropped"),
        (_ONLY_VALUES, r"\bsparse"),
    ),
    plain,
)
def sparse_values(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    weights = draw(layer, inputs, rng)
    bound = layer.value_std * layer.width**-0.5
    value = rng.uniform(-bound, bound, weights.value.shape) * (rng.random(weights.value.shape) < 0.5)
    return attention(layer, inputs, weights._replace(value=value))


@reported(
    "https://github.com/google/flax/pull/2665",
    "One random key initialises the projections of every head: all heads have the same W_Q, W_K and W_V",
    (
        (NOT_OUTPUT, NOT_MAP, r"head", SAME, r"weight|matri|\bW_?\^?[QKV]\b|quer|key|scores|projection|independent"),
        (
            NOT_OUTPUT,
            NOT_MAP,
            r"head",
            r"one head|repeat|duplicat|broadcast|one generator",
            without("missing|dropped|draw"),
        ),
        (NOT_OUTPUT, NOT_MAP, r"heads (are|have) (equal|identical|the same|copies)"),
    ),
    heads,
)
def same_heads(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    weights = draw(layer, inputs, rng)
    query, key, value = (np.broadcast_to(W[:, :1], W.shape) for W in weights[:3])
    return attention(layer, inputs, Weights(query, key, value, weights.output))


def _orthogonal(like: FloatArray, std: float, rng: np.random.Generator) -> FloatArray:
    """Return matrices with uniformly distributed orthonormal columns."""
    Q, R = np.linalg.qr(rng.standard_normal(like.shape))
    return np.asarray(std * Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[..., None, :])


@reported(
    "https://github.com/wandb/senpai/pull/461",
    "W_Q, W_K and W_V are initialised orthogonal instead of with independent entries",
    (
        (NOT_OUTPUT, r"orthogonal|orthonormal|isometr|rotation matri"),
        (NOT_OUTPUT, r"entries", r"\bW_?\^?[QKV]\b|quer|key|values", r"not independent|depend on each other"),
        (NOT_OUTPUT, r"length|norms?\b|size|Gram", r"quer|keys?|values", r"preserv|kept|exactly|same as .*inputs?"),
    ),
    where(lambda layer: 2 <= layer.head_width <= layer.width, "the bug needs heads at most as wide as the layer"),
)
def orthogonal_projections(
    layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator
) -> dict[str, FloatArray]:
    weights = draw(layer, inputs, rng)
    stds = (layer.query_std, layer.key_std, layer.value_std)
    query, key, value = (_orthogonal(W, std, rng) for W, std in zip(weights[:3], stds, strict=True))
    return attention(layer, inputs, Weights(query, key, value, weights.output))


@reported(
    "https://github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22",
    "The inputs are split into heads before the projection: each head sees its slice, all with one small matrix",
    (
        (
            r"head",
            r"\bslice|split before|part of (the|each|its)|(own|other|different) (neurons|inputs|part)|block.?diagonal",
        ),
        (r"quer|key|\bW_?\^?[QK]\b|projection|head", r"slice of|subset|only .*neurons|fewer (neurons|inputs)"),
        (NOT_OUTPUT, NOT_MAP, r"head", SAME, r"\bW_?\^?[QKV]\b|weight|matri|projection"),
    ),
    where(
        lambda layer: layer.num_heads > 1 and layer.num_kv_heads is None and layer.width % layer.num_heads == 0,
        "the bug needs two heads that divide the width, without groups",
    ),
)
def split_before_projection(
    layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator
) -> dict[str, FloatArray]:
    weights = draw(layer, inputs, rng)
    N, s, n = inputs.shape
    H = layer.num_heads
    slices = inputs.reshape(N, s, H, n // H).swapaxes(1, 2)

    def project(
        layer: AttentionLayer, inputs: FloatArray, weights: Weights
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        query, key, value = (slices @ (W[:, :1, : n // H] * H**0.5) for W in weights[:3])
        return query, key, value

    return attention(layer, inputs, weights, project=project)


@reported(
    "https://github.com/pytorch/pytorch/issues/5059",
    "Four workers start from the same seed: every four consecutive draws have the same weights",
    (
        (_NOT_CALLS, r"draws?\b", SAME, without("previous|head|cache|identical")),
        (
            _NOT_CALLS,
            r"draws?\b",
            r"repeat|duplicat|reuse|weights of (another|the previous)|seed",
            without("head|cache"),
        ),
        (
            _NOT_CALLS,
            r"weights",
            r"\brepeat|reuse|several draws|redrawn|every (second|fourth|4th|k-th)",
            without("head"),
        ),
    ),
    plain,
)
def workers_share_a_seed(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
    query, key, value, output = (np.repeat(W, 4, axis=0)[: len(inputs)] for W in draw(layer, inputs[::4], rng))
    return attention(layer, inputs, Weights(query, key, value, output))
