"""Requirements of checks and faults on attention layers."""

from __future__ import annotations

import numpy as np

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_covariance, input_kernel
from attncheck.layers.parts.attention_map import Linear, Softmax
from attncheck.layers.parts.mask import plain_mask
from attncheck.layers.requirement import Requirement

#: Up to this width, finite-width effects are large.
SMALL_WIDTH = 16
#: Up to this width, a check can detect that two projections use the same matrix, because they are correlated.
NARROW_WIDTH = 8
# Positions are distinguishable if the smallest eigenvalue of the input covariance is at least this fraction of the
# largest.
_EQUAL = 1e-5
#: A clip at this many standard deviations never acts in practice.
NEVER_CLIPPED = 40.0

OfLayer = Requirement[AttentionLayer]


def linear(layer: AttentionLayer) -> bool:
    """Return whether the inputs equal h + e in practice.

    This is so without a norm, if φ is the identity or a clip that is too wide to change anything.
    """
    clipped = layer.activation == "clip" and layer.clip < NEVER_CLIPPED * layer.hidden_std
    return layer.activation in ("clip", "identity") and not clipped and layer.norm is None


def _distinguishable(layer: AttentionLayer) -> bool:
    """Return whether positions differ by more than single-precision rounding."""
    spectrum = np.linalg.eigvalsh(input_covariance(layer))
    return bool(spectrum[0] >= _EQUAL * spectrum[-1])


def _overlapping(layer: AttentionLayer) -> bool:
    kernel = input_kernel(layer).matrix
    return bool((kernel != np.diag(np.diagonal(kernel))).any()) or layer.width <= SMALL_WIDTH


def _regular(layer: AttentionLayer) -> bool:
    """Return whether score matrices are invertible if φ is linear."""
    if min(layer.width, layer.head_width) <= layer.seq_len or layer.equal_inputs:
        # If width and seq_len are equal, one score matrix in a hundred is singular up to rounding.
        return layer.seq_len == 1
    return _distinguishable(layer)


SEVERAL_NEURONS = OfLayer("several neurons", lambda layer: layer.width > 1, "the inputs have one neuron")
SEVERAL_POSITIONS = OfLayer("several positions", lambda layer: layer.seq_len > 1, "there is one position only")
THREE_POSITIONS = OfLayer("three positions", lambda layer: layer.seq_len > 2, "there are fewer than three positions")
MANY_POSITIONS = OfLayer(  # with fewer, a matrix shared by two heads cannot be recognised
    "at least a tenth as many positions as neurons per head",
    lambda layer: layer.head_width <= 10 * layer.seq_len,
    "heads have more than ten times as many neurons as there are positions",
)
ONE_POSITION = OfLayer("one position", lambda layer: layer.seq_len == 1, "there is more than one position")
UNEQUAL_INPUTS = OfLayer(
    "positions with distinct inputs", lambda layer: not layer.equal_inputs, "all positions are equal"
)
UNEQUAL_POSITIONS = UNEQUAL_INPUTS & SEVERAL_POSITIONS
DISTINGUISHABLE_POSITIONS = UNEQUAL_POSITIONS & OfLayer(
    "positions that differ by more than rounding", _distinguishable, "positions differ by rounding only"
)
CORRELATED_POSITIONS = (
    OfLayer(
        "correlated positions",
        _overlapping,
        f"positions are uncorrelated, and chance correlations are below 1/√{SMALL_WIDTH}",
    )
    & SEVERAL_POSITIONS
)
POSITION_VECTORS = OfLayer(
    "position vectors", lambda layer: layer.position_std > 0.0, "the layer declares no positions"
)

SEVERAL_HEADS = OfLayer("several heads", lambda layer: layer.num_heads > 1, "there is one head only")
SEVERAL_GROUPS = OfLayer(
    "several groups of heads", lambda layer: layer.kv_heads > 1, "there is one group of heads only"
)
SHARED_GROUPS = OfLayer(
    "heads that share keys and values",
    lambda layer: layer.group_size > 1,
    "no heads share their keys and values",
)
LOW_RANK = OfLayer(
    "heads narrower than the layer", lambda layer: layer.head_width != layer.width, "heads are as wide as the layer"
)
SMALL_HEADS = OfLayer(
    "small heads", lambda layer: layer.head_width <= SMALL_WIDTH, f"heads are wider than {SMALL_WIDTH}"
)
NARROW_HEADS = OfLayer(
    "narrow heads", lambda layer: layer.head_width <= NARROW_WIDTH, f"heads are wider than {NARROW_WIDTH}"
)
HEAD_SCALING = OfLayer(
    "the factor H^{-1/2}", lambda layer: layer.head_scaling, "the layer declares a plain sum over heads"
)

UNTIED = OfLayer(
    "separate W_Q and W_K",
    lambda layer: not layer.tied_query_key,
    "W_Q is W_K in this layer, which Assumption 1 excludes",
)
TIED = OfLayer("W_Q = W_K", lambda layer: layer.tied_query_key, "W_Q and W_K are separate matrices")
OVER_N = OfLayer("1/n scores", lambda layer: layer.score_scaling == "1/n", "the layer does not declare 1/n")
OVER_ROOT_N = OfLayer("1/√n scores", lambda layer: layer.score_exponent == 0.5, "the layer does not declare 1/√n")
A_LIMIT = OfLayer(
    "a limit", lambda layer: layer.score_exponent >= 0.5, "scores grow with the width: no limit is computed"
)
TWO_SCALINGS = OfLayer("heads of width two or more", lambda layer: layer.head_width > 1, "1/n is 1/√n at this width")

CAUSAL = OfLayer(
    "a mask that hides positions",
    lambda layer: layer.mask == "causal" and plain_mask(layer) and layer.seq_len > 1,
    "the layer has no mask that hides positions, or not the plain causal mask",
)
FAR_VISIBLE = OfLayer(
    "a last position that sees the first",
    lambda layer: bool(layer.visible[-1, 0]),
    "the mask hides the first position from the last",
)
SOFTMAX = OfLayer("softmax", lambda layer: layer.map == Softmax(), "the attention map is not plain softmax")
PROBABILITIES = (
    OfLayer("weights that sum to 1", lambda layer: layer.map.traits.sums_to_one, "the attention map has no softmax")
    & UNEQUAL_POSITIONS
)
LINEAR_ATTENTION = OfLayer(
    "linear attention", lambda layer: layer.map == Linear(), "the layer declares no linear attention"
)

PLAIN_INPUTS = OfLayer("unnormalised inputs", lambda layer: layer.norm is None, "the inputs are normalised")
NORMALISED_INPUTS = OfLayer("normalised inputs", lambda layer: layer.norm is not None, "the inputs are not normalised")
LINEAR_INPUTS = OfLayer("inputs that do not saturate", linear, "saturated inputs may repeat")
RELU_INPUTS = OfLayer("relu inputs", lambda layer: layer.activation == "relu", "the activation is not relu")
REGULAR_SCORES = OfLayer("invertible score matrices", _regular, "score matrices are singular, or nearly so") & OfLayer(
    "inputs that do not saturate",
    lambda layer: linear(layer) or min(layer.width, layer.head_width) <= layer.seq_len,
    "score matrices may be singular",
)
