"""Effects of a layer's parts on its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck.layers.parts import PARTS, refusing
from attncheck.layers.parts.rotary import rotated

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


def whole_vectors(layer: AttentionLayer) -> bool:
    """Return whether scores depend on all neurons of queries and keys, not on Gram matrices alone."""
    return any(part.whole_vectors and part.present(layer) for part in PARTS)


def score_vectors(layer: AttentionLayer, vectors: FloatArray) -> FloatArray:
    """Return queries or keys, (..., seq_len, head_dim), in the form that enters scores: normalised, then rotated."""
    for part in PARTS:
        vectors = part.vectors(layer, vectors)
    return rotated(layer, vectors)


def score_kernel(layer: AttentionLayer, kernel: FloatArray) -> FloatArray:
    """Return the limiting kernel of queries and keys for query_std = key_std = 1, given the inputs' `kernel`."""
    for part in PARTS:
        kernel = part.kernel(layer, kernel)
    return kernel


def mean_offset(layer: AttentionLayer) -> FloatArray:
    """Return the mean bias of each score, (num_heads, seq_len, seq_len); without slopes, a 0 of shape (1, 1, 1).

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> mean_offset(AttentionLayer(width=8, seq_len=2, num_heads=1, bias_slopes=(0.5,)))
    array([[[ 0. , -0.5],
            [-0.5,  0. ]]])
    """
    means = (part.mean_offset(layer) for part in PARTS)
    return np.asarray(sum((mean for mean in means if mean is not None), start=np.zeros((1, 1, 1))))


def offset_variance(layer: AttentionLayer) -> float:
    """Return the variance of the random bias of a score, 0 if biases are not random."""
    return sum(std**2 for std, _ in _random_offsets(layer))


def offset_covariance(layer: AttentionLayer, rows: IntArray, columns: IntArray) -> FloatArray:
    """Return the covariance, (m, m), of the random biases of m scores of a head, which are at (rows[a], columns[a])."""
    covariance = np.zeros((len(rows), len(rows)))
    for std, index in _random_offsets(layer):
        covariance += std**2 * np.equal.outer(index[rows, columns], index[rows, columns])
    return covariance


def offset_count(layer: AttentionLayer, mask: BoolArray) -> int:
    """Return the number of independent random biases among the scores of one head for which `mask` is True."""
    return sum(len(np.unique(index[mask])) for _, index in _random_offsets(layer))


def with_offsets(layer: AttentionLayer, scores: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return scores (draws, num_heads, seq_len, seq_len) plus their biases; `scores` itself if there are none."""
    mean = mean_offset(layer)
    if mean.any():
        scores = scores + mean
    for std, index in _random_offsets(layer):
        table = std * rng.standard_normal((*scores.shape[:2], index.max() + 1))
        scores = scores + table[..., index]
    return scores


def has_offset(layer: AttentionLayer) -> bool:
    """Return whether scores have a bias."""
    return bool(mean_offset(layer).any()) or offset_variance(layer) > 0.0


def heads_differ(layer: AttentionLayer) -> bool:
    """Return whether the law of the scores or of their weights depends on the head."""
    fields = [[part.of_head(layer, head) for part in PARTS] for head in range(layer.num_heads)]
    return any(of_head != fields[0] for of_head in fields)


def of_head(layer: AttentionLayer, head: int) -> AttentionLayer:
    """Return a layer with only the given head."""
    fields = {name: value for part in PARTS for name, value in part.of_head(layer, head).items()}
    return layer.replace(num_heads=1, num_kv_heads=None, **fields)


def distinct_heads(layer: AttentionLayer) -> list[AttentionLayer]:
    """Return layers with one head each, for computing averages over the heads of a layer.

    There is one such layer per head if the heads differ; otherwise there is only one, for the first head.
    """
    return [of_head(layer, head) for head in range(layer.num_heads if heads_differ(layer) else 1)]


def _random_offsets(layer: AttentionLayer) -> list[tuple[float, IntArray]]:
    """Return `LayerPart.random_offset` of each part that has one."""
    return [offset for part in PARTS if (offset := part.random_offset(layer))]


def one_covariance(layer: AttentionLayer) -> bool:
    """Return whether the covariance of a head's scores has to be computed as one matrix.

    This is so with rotary positions or random biases. Otherwise it is a product of query and key covariances.
    """
    return layer.rotary_base is not None or offset_variance(layer) > 0.0


def given_inputs(layer: AttentionLayer) -> bool:
    """Return whether, given the inputs, each score is the product of a centred normal variable and the length of a key.

    Lengths of keys are χ-distributed. This is so for the layer of the paper.
    """
    return not (layer.tied_query_key or refusing(layer, "normal scores") or has_offset(layer))


def small_with_inputs(layer: AttentionLayer) -> bool:
    """Return whether scores approach constants as the inputs, before any norm, become small."""
    return not (layer.norm or refusing(layer, "small scores") or offset_variance(layer))
