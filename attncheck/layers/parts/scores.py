"""Effects of a layer's parts on its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck.layers.parts import PARTS, refusing
from attncheck.layers.parts.position_bias import mean_offset, steps

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


def whole_vectors(layer: AttentionLayer) -> bool:
    """Return whether scores depend on all neurons of queries and keys, not on Gram matrices alone."""
    return any(part.whole_vectors and part.present(layer) for part in PARTS)


def offset_covariance(layer: AttentionLayer, rows: IntArray, columns: IntArray) -> FloatArray:
    """Return the covariance, (m, m), of the random biases of m scores of a head, which are at (rows[a], columns[a])."""
    index = steps(layer)[rows, columns]
    return np.asarray(layer.bias_std**2 * np.equal.outer(index, index))


def offset_count(layer: AttentionLayer, mask: BoolArray) -> int:
    """Return the number of independent random biases among the scores of one head for which `mask` is True."""
    return len(np.unique(steps(layer)[mask])) if layer.bias_std else 0


def with_offsets(layer: AttentionLayer, scores: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return scores (draws, num_heads, seq_len, seq_len) plus their biases; `scores` itself if there are none."""
    mean = mean_offset(layer)
    if mean.any():
        scores = scores + mean
    if layer.bias_std:
        table = layer.bias_std * rng.standard_normal((*scores.shape[:2], 2 * layer.seq_len - 1))
        scores = scores + table[..., steps(layer) + layer.seq_len - 1]
    return scores


def has_offset(layer: AttentionLayer) -> bool:
    """Return whether scores have a bias."""
    return bool(mean_offset(layer).any()) or layer.bias_std > 0.0


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


def one_covariance(layer: AttentionLayer) -> bool:
    """Return whether the covariance of a head's scores has to be computed as one matrix.

    This is so with rotary positions or random biases. Otherwise it is a product of query and key covariances.
    """
    return layer.rotary_base is not None or layer.bias_std > 0.0


def given_inputs(layer: AttentionLayer) -> bool:
    """Return whether, given the inputs, each score is the product of a centred normal variable and the length of a key.

    Lengths of keys are χ-distributed. This is so for the layer of the paper.
    """
    return not (layer.tied_query_key or refusing(layer, "normal scores") or has_offset(layer))


def small_with_inputs(layer: AttentionLayer) -> bool:
    """Return whether scores approach constants as the inputs, before any norm, become small."""
    return not (layer.norm or refusing(layer, "small scores") or layer.bias_std)
