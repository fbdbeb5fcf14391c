"""Simulators that multiply or share the wrong things."""

from __future__ import annotations

import numpy as np

from attncheck.attention import AttentionLayer
from attncheck.attention_map import attention_weights, map_scores, visible
from attncheck.faults import visibility as seen
from attncheck.faults.fault import Fault, FloatArray
from attncheck.faults.literal import Literal, Projected, independent


def _tied_query_key(layer: AttentionLayer, root: FloatArray, rng: np.random.Generator) -> Projected:
    queries, keys, values = independent(layer, root, rng)
    del queries
    return keys, keys, values


def _shared_keys(layer: AttentionLayer, root: FloatArray, rng: np.random.Generator) -> Projected:
    queries, keys, values = independent(layer, root, rng)
    return queries, np.repeat(keys[:, :1], layer.num_heads, axis=1), values


def _tied_key_value(layer: AttentionLayer, root: FloatArray, rng: np.random.Generator) -> Projected:
    queries, keys, _ = independent(layer, root, rng)
    return queries, keys, keys


def _softmax_over_columns(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return map_scores(layer, scores.swapaxes(-1, -2), visible(layer).T).swapaxes(-1, -2)


def _leaking_mask(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return map_scores(layer, scores, np.tri(layer.seq_len, layer.seq_len, 1, dtype=bool))


def _without_last_head(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    weights = attention_weights(layer, scores)
    weights[:, -1] = 0.0
    return weights


def _independent_scores(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
    """Draw every score alone: each with the right variance given its key, none tied to another.

    Of the queries only their lengths are used, once for each score.
    """
    rng = np.random.default_rng(np.abs(queries).view(np.uint64).ravel()[:4])
    lengths = np.sqrt((keys**2).mean(axis=-1))[:, :, None, :]
    normals = rng.standard_normal((*queries.shape[:3], layer.seq_len))
    return layer.score_factor * lengths * normals


FAULTS = ()
