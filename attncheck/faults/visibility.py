"""In which layers a fault can be seen."""

from __future__ import annotations

import numpy as np

from attncheck.faults.fault import Visible
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_kernel

#: Widths at which finite-width effects are large.
SMALL_WIDTH = 16
#: Widths at which two projections of one matrix have much of it in common.
NARROW_WIDTH = 8


def everywhere(layer: AttentionLayer) -> bool | str:
    """See it in every layer."""
    return True


def several_positions(layer: AttentionLayer) -> bool | str:
    """See it where there is more than one position."""
    return layer.seq_len > 1 or "there is one position only"


def correlated_positions(layer: AttentionLayer) -> bool | str:
    """See it where the inputs of different positions overlap: by chance at small widths, else by declaration."""
    kernel = input_kernel(layer).matrix
    overlap = bool((kernel != np.diag(np.diagonal(kernel))).any())
    if overlap or layer.width <= SMALL_WIDTH:
        return several_positions(layer)
    return f"positions are uncorrelated, but for less than 1/√{SMALL_WIDTH} by chance"


def several_heads(layer: AttentionLayer) -> bool | str:
    """See it where there is more than one head."""
    return layer.num_heads > 1 or "there is one head only"


def several_groups(layer: AttentionLayer) -> bool | str:
    """See it where heads have keys of their own."""
    return layer.kv_heads > 1 or "there is one group of heads only"


def shared_groups(layer: AttentionLayer) -> bool | str:
    """See it where several heads share their keys."""
    return layer.group_size > 1 or "no heads share their keys"


def separate(layer: AttentionLayer) -> bool | str:
    """See it where queries and keys have matrices of their own."""
    return not layer.tied_query_key or "the layer declares one matrix"


def causal(layer: AttentionLayer) -> bool | str:
    """See it where a mask hides some position."""
    return (layer.mask == "causal" and layer.seq_len > 1) or "nothing is masked"


def softmax(layer: AttentionLayer) -> bool | str:
    """See it where softmax normalises rows of more than one weight."""
    return layer.attention_map == "softmax" or "the attention map has no softmax"


def small_width(layer: AttentionLayer) -> bool | str:
    """See it where the width is small."""
    return layer.head_width <= SMALL_WIDTH or f"heads are wider than {SMALL_WIDTH}"


def narrow(layer: AttentionLayer) -> bool | str:
    """See it where sizes of two projections of one matrix go together in thousands of draws."""
    return layer.head_width <= NARROW_WIDTH or f"heads are wider than {NARROW_WIDTH}"


def many_positions(layer: AttentionLayer) -> bool | str:
    """See it where the positions span a tenth of a head at least: there one matrix shows through two sets of keys."""
    return layer.head_width <= 10 * layer.seq_len or "heads are wider than ten times the positions"


def both(first: Visible, second: Visible) -> Visible:
    """See it where two conditions hold."""

    def visible(layer: AttentionLayer) -> bool | str:
        answer = first(layer)
        return second(layer) if answer is True else answer

    return visible
