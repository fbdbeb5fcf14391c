"""Regimes: layer settings with distinct predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from attncheck.layers.attention import AttentionLayer


@dataclasses.dataclass(frozen=True)
class Regime:
    """A layer setting with its correct prediction, and a similar wrong prediction that tests must reject.

    Attributes
    ----------
    name : str
    layer : AttentionLayer
        A cheap example.
    what : str
        The prediction.
    rejects : str
        The wrong prediction.
    fault : str
        Name in `attncheck.faults.FAULTS` of a simulator that follows the wrong prediction.
    weights : str
        Law of the weights, a key of `attncheck.simulators.weights.WEIGHT_LAWS`.
    """

    name: str
    layer: AttentionLayer
    what: str
    rejects: str
    fault: str
    weights: str = "gaussian"


_STANDARD = AttentionLayer(width=16, seq_len=4, num_heads=2)

REGIMES: Mapping[str, Regime] = MappingProxyType(
    {
        regime.name: regime
        for regime in (
            Regime(
                "standard",
                _STANDARD,
                "given the limiting scores p, outputs are Gaussian with covariance S(p): a scale mixture of normals",
                "the Gaussian of the same covariance",
                "gaussian_outputs",
            ),
            Regime(
                "causal",
                AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal"),
                "a position attends to itself and those before it: the first output is W_O W_V x^1, the others are "
                "mixtures",
                "the law without a mask, equal at all positions",
                "ignored_mask",
            ),
            Regime(
                "one position",
                AttentionLayer(width=1, seq_len=1, num_heads=1),
                "softmax of one score is 1: the output is W_O W_V x at every width, and Gaussian in the limit",
                "the input itself, which has the same law at infinite width if all variances are 1",
                "skipped_values",
            ),
            Regime(
                "1/n scaling",
                AttentionLayer(width=16, seq_len=4, num_heads=2, score_scaling="1/n"),
                "scores vanish as n^{-1/2} and all weights tend to 1/s: the outputs of all positions tend to one "
                "Gaussian, of variance σ_V²σ_O² Σ_jk K_jk/s²",
                "the mixture under 1/√n scaling",
                "ignored_over_n",
            ),
            Regime(
                "low rank",
                AttentionLayer(width=16, seq_len=3, num_heads=2, head_dim=4),
                "with heads of fixed size the law does not approach the limit as the width grows",
                "the law of heads as wide as the layer, whose distance falls as 1/n",
                "full_rank_heads",
            ),
            Regime(
                "linear attention",
                AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear"),
                "without softmax y = H^{-1/2} Σ p_j ṽ^j, which for K = I is √(χ²_{sH}/H) times a normal: Laplace's law "
                "for two positions and one head",
                "softmax of the same scores, or the Gaussian of the same variance",
                "linear_as_softmax",
            ),
            Regime(
                "many heads",
                AttentionLayer(width=8, seq_len=2, num_heads=32),
                "outputs tend to a Gaussian as the number of heads grows: the limit's excess kurtosis falls as 1/H",
                "repeated heads, for which the excess kurtosis stops falling",
                "repeated_heads",
            ),
            Regime(
                "tied queries and keys",
                AttentionLayer(width=16, seq_len=3, num_heads=2, score_scaling="1/n", tied_query_key=True),
                "with W_Q = W_K and 1/n the scores tend to σ_Qσ_K K, which is not random: the outputs tend to Gaussian "
                "ones with covariance σ_V²σ_O² A K A^T, A the softmax of σ_Qσ_K K",
                "separate matrices, where scores vanish and all weights tend to 1/s",
                "untied_query_key",
            ),
            Regime(
                "relu inputs",
                AttentionLayer(width=16, seq_len=4, num_heads=2, activation="relu"),
                "inputs have a mean, so that all positions are correlated: K_ii = 1/2 and K_ij = 1/(2π)",
                "centred inputs, for which K is diagonal",
                "centred_relu",
            ),
            Regime(
                "positions",
                AttentionLayer(width=16, seq_len=4, num_heads=2, position_std=1.0),
                "vectors e^i added to the h^i correlate positions, near ones most; their length does not depend on h",
                "inputs without them, or with different ones for scores and values",
                "forgotten_positions",
            ),
            Regime(
                "non-Gaussian weights",
                _STANDARD,
                "weights of any law with the declared variance have the same limit, at a different distance",
                "weights of another variance, e.g. uniform on [-1, 1]",
                "unscaled_uniform_weights",
                weights="uniform",
            ),
            Regime(
                "normalised inputs",
                AttentionLayer(width=16, seq_len=4, num_heads=2, activation="relu", norm="rms"),
                "each position is divided by its own length over √n: K_ii = 1, and K_ij = 1/π for relu",
                "layer norm, which subtracts the shared mean, so that K is the identity",
                "other_norm",
            ),
        )
    }
)
