"""Effects of a layer's parts on its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attncheck.layers.parts import PARTS, refusing
from attncheck.layers.parts.position_bias import has_bias
from attncheck.layers.parts.rotary import turned

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

FloatArray = NDArray[np.float64]


def whole_vectors(layer: AttentionLayer) -> bool:
    """Return whether scores depend on all neurons of queries and keys, not on Gram matrices alone."""
    return any(part.whole_vectors and part.present(layer) for part in PARTS)


def score_vectors(layer: AttentionLayer, vectors: FloatArray) -> FloatArray:
    """Return queries or keys, (..., seq_len, head_dim), as scores use them: normalised, then rotated."""
    for part in PARTS:
        vectors = part.vectors(layer, vectors)
    return turned(layer, vectors)


def score_kernel(layer: AttentionLayer, kernel: FloatArray) -> FloatArray:
    """Return the limiting kernel of queries and keys, over their variances; `kernel` itself if no part changes it."""
    for part in PARTS:
        kernel = part.kernel(layer, kernel)
    return kernel


def one_covariance(layer: AttentionLayer) -> bool:
    """Return whether the covariance of a head's scores is not a product of query and key covariances."""
    return layer.rotary_base is not None or layer.bias_std > 0.0


def given_inputs(layer: AttentionLayer) -> bool:
    """Return whether scores given the inputs are centred normals times χ lengths, as in the paper's layer."""
    return not (layer.tied_query_key or refusing(layer, "normal scores") or has_bias(layer))


def small_with_inputs(layer: AttentionLayer) -> bool:
    """Return whether scores approach constants as the inputs before their norm become small."""
    return not (layer.norm or refusing(layer, "small scores") or layer.bias_std)
