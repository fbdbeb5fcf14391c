"""Draws from the limit of a layer."""

from __future__ import annotations

import numpy as np

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.layers.kernel import input_covariance, input_kernel, limit_inputs, psd_root
from attncheck.layers.parts.qk_norm import score_kernel
from attncheck.theory.limits import rows


def draw_limit(layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator) -> Draws:
    """Draw scores p°, outputs Σ_a A_a ṽ^a/√H with values ṽ, and inputs Z^{x^i} from the limit of a layer.

    Example 1: Cov(p^a_ij, p^b_kl) = δ_ab σ_Q²σ_K² K_ik K_jl, Cov(ṽ^{a,j}, ṽ^{b,k}) = δ_ab σ_V²σ_O² K_jk, and p°, ṽ and
    the inputs are independent. For rotary positions see ``rows.score_covariance``.

    Returns
    -------
    Draws
        `outputs` and `inputs` of shape (size, seq_len, coordinates), `scores` of shape (size, num_heads, seq_len,
        seq_len); no Gram matrices. With `coordinates` 0, scores only.
    """
    std, kernel = rows.score_std(layer), input_kernel(layer).matrix
    root = psd_root(kernel)
    rank, per_head = root.shape[1], (size, layer.num_heads)
    scores = np.broadcast_to(rows.mean_scores(layer, kernel), (*per_head, *kernel.shape)).copy()
    if rows.drawn_jointly(layer, kernel) and (std > 0 or layer.bias_std):
        score_root = rows.root_of_scores(layer, kernel)
        scores += (rng.standard_normal((*per_head, score_root.shape[1])) @ score_root.T).reshape(scores.shape)
    elif std > 0:
        between = score_kernel(layer, kernel)
        side = root if between is kernel else psd_root(between)
        scores += std * (side @ rng.standard_normal((*per_head, rank, rank)) @ side.T)
    if coordinates == 0:
        nothing = np.zeros((size, layer.seq_len, 0))
        return Draws(outputs=nothing, scores=scores, inputs=nothing)
    values = root @ rng.standard_normal((*per_head, rank, coordinates))
    outputs = (layer.attention_weights(scores) @ values).sum(axis=1)
    outputs *= layer.value_std * layer.output_std * layer.head_factor
    input_root = psd_root(input_covariance(layer))
    hidden = input_root @ rng.standard_normal((size, input_root.shape[1], coordinates))
    return Draws(outputs=outputs, scores=scores, inputs=limit_inputs(layer, hidden))
