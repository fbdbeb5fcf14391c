"""Regimes: layer settings whose limits or finite-width laws differ in kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attncheck.layers.attention import AttentionLayer

_STANDARD = AttentionLayer(width=16, seq_len=4, num_heads=2)

#: A cheap layer of each regime, by name.
REGIMES: Mapping[str, AttentionLayer] = MappingProxyType(
    {
        # Given the limiting scores p, outputs are Gaussian with covariance S(p): a scale mixture of normals.
        "standard": _STANDARD,
        # The first output is W_O W_V x^1; the others are mixtures.
        "causal": AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal"),
        # Softmax of one score is 1: the output is W_O W_V x at every width.
        "one position": AttentionLayer(width=1, seq_len=1, num_heads=1),
        # Scores vanish as n^{-1/2}, and the outputs of all positions tend to one Gaussian.
        "1/n scaling": _STANDARD.replace(score_scaling="1/n"),
        # With heads of fixed size the law does not approach the limit as the width grows.
        "low rank": AttentionLayer(width=16, seq_len=3, num_heads=2, head_dim=4),
        # For K = I the output is √(χ²_{sH}/H) times a normal: Laplace's law for two positions and one head.
        "linear attention": AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear"),
        # The excess kurtosis of the limit falls as 1/H.
        "many heads": AttentionLayer(width=8, seq_len=2, num_heads=32),
        # With W_Q = W_K and 1/n the scores tend to σ_Qσ_K K, which is not random.
        "tied queries and keys": AttentionLayer(
            width=16, seq_len=3, num_heads=2, score_scaling="1/n", tied_query_key=True
        ),
        # Inputs have a mean, so that all positions are correlated: K_ii = 1/2 and K_ij = 1/(2π).
        "relu inputs": _STANDARD.replace(activation="relu"),
        # Vectors e^i correlate positions, near ones most.
        "positions": _STANDARD.replace(position_std=1.0),
        # Weights of any law with the declared variance have the same limit.
        "non-Gaussian weights": _STANDARD,
        # Each position is divided by its own length over √n: K_ii = 1, and K_ij = 1/π for relu.
        "normalised inputs": _STANDARD.replace(activation="relu", norm="rms"),
    }
)
