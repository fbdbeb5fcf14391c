"""Faults that follow the prediction of a neighbouring regime."""

from __future__ import annotations

#: Name of a fault that is wrong in each regime.
FAULT_OF = {
    "standard": "gaussian_outputs",
    "causal": "ignored_mask",
    "one position": "skipped_values",
    "1/n scaling": "ignored_over_n",
    "low rank": "full_rank_heads",
    "linear attention": "linear_as_softmax",
    "many heads": "repeated_heads",
    "tied queries and keys": "untied_query_key",
    "relu inputs": "centred_relu",
    "positions": "forgotten_positions",
    "non-Gaussian weights": "unscaled_uniform_weights",
    "normalised inputs": "other_norm",
}
