"""Effects of a layer's parts on its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attncheck.layers.norm import normalised
from attncheck.layers.parts.position_bias import has_bias
from attncheck.layers.parts.rotary import turned

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

FloatArray = NDArray[np.float64]


def whole_vectors(layer: AttentionLayer) -> bool:
    """Return whether scores depend on all neurons of queries and keys, not on Gram matrices alone."""
    return layer.rotary_base is not None or layer.qk_norm


def score_vectors(layer: AttentionLayer, vectors: FloatArray) -> FloatArray:
    """Return queries or keys, (..., seq_len, head_dim), as scores use them: normalised, then rotated."""
    if layer.qk_norm:
        vectors = (layer.query_std * layer.key_std) ** 0.5 * normalised("rms", vectors)
    return turned(layer, vectors)


def one_covariance(layer: AttentionLayer) -> bool:
    """Return whether the covariance of a head's scores is not a product of query and key covariances."""
    return layer.rotary_base is not None or layer.bias_std > 0.0


def given_inputs(layer: AttentionLayer) -> bool:
    """Return whether scores given the inputs are centred normals times χ lengths, as in the paper's layer."""
    return not (layer.tied_query_key or layer.qk_norm or has_bias(layer))
