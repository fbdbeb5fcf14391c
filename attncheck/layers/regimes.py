"""Fixed test layers: one per regime, i.e. per kind of limit or finite-width law, and layers that reveal faults."""

from __future__ import annotations

from collections.abc import Mapping

from attncheck.layers.attention import AttentionLayer

#: Given the limiting scores p, outputs are Gaussian with covariance S(p): a scale mixture of normals.
STANDARD = AttentionLayer(width=16, seq_len=4, num_heads=2)
#: The output of the first position is W_O W_V x^1; other outputs are scale mixtures of normals.
CAUSAL = AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal")
#: Softmax of one score is 1: the output is W_O W_V x at every width.
ONE_POSITION = AttentionLayer(width=1, seq_len=1, num_heads=1)
#: Scores vanish as n^{-1/2}, and the outputs of all positions tend to one Gaussian.
OVER_N = STANDARD.replace(score_scaling="1/n")
#: With heads of fixed size the law does not approach the limit as the width grows.
LOW_RANK = AttentionLayer(width=16, seq_len=3, num_heads=2, head_dim=4)
#: If the kernel K of the inputs is I, the output is √(χ²_{sH}/H) times a normal variable. For s = 2 positions and H = 1
#: head, its law is Laplace's.
LINEAR = AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear")
#: The excess kurtosis of the limit falls as 1/H.
MANY_HEADS = AttentionLayer(width=4, seq_len=2, num_heads=20)
#: With W_Q = W_K and scores divided by n, the scores tend to σ_Qσ_K K, which is not random.
TIED = AttentionLayer(width=16, seq_len=3, num_heads=2, score_scaling="1/n", tied_query_key=True)
#: Inputs have a nonzero mean, which correlates all positions: their kernel is K_ii = 1/2 and K_ij = 1/(2π).
RELU = STANDARD.replace(activation="relu")
#: The position vectors e^i correlate the inputs, neighbouring positions most strongly.
POSITIONS = STANDARD.replace(position_std=1.0)
#: The input of each position is divided by its root mean square: the kernel is K_ii = 1, and K_ij = 1/π for relu.
NORMALISED = STANDARD.replace(activation="relu", norm="rms")

#: In narrow layers, a few draws are enough to detect a fault.
NARROW = AttentionLayer(width=8, seq_len=4, num_heads=2)
#: With two neurons, scores and outputs are enough to detect matrices that are shared by mistake.
TWO_NEURONS = AttentionLayer(width=2, seq_len=4, num_heads=4, num_kv_heads=2, mask="causal")
#: With so many pairs of heads, a check that tests a different pair in each draw cannot detect that two share a matrix.
EIGHT_HEADS = AttentionLayer(width=8, seq_len=4, num_heads=8)
WIDE = AttentionLayer(width=128, seq_len=4, num_heads=2)
#: Two groups of heads, and enough positions to distinguish them.
GROUPS = AttentionLayer(width=8, seq_len=8, num_heads=4, num_kv_heads=2)
#: The heads share their keys; if they also share W_Q, their scores are equal.
ONE_GROUP = AttentionLayer(width=8, seq_len=4, num_heads=2, num_kv_heads=1)
SINGLE = AttentionLayer(width=16, seq_len=1, num_heads=2)

#: A cheap layer of each regime, by name.
REGIMES: Mapping[str, AttentionLayer] = {
    "standard": STANDARD,
    "causal": CAUSAL,
    "one position": ONE_POSITION,
    "1/n scaling": OVER_N,
    "low rank": LOW_RANK,
    "linear attention": LINEAR,
    "many heads": MANY_HEADS,
    "tied queries and keys": TIED,
    "relu inputs": RELU,
    "positions": POSITIONS,
    # Weights of any law with the declared variance have the same limit.
    "non-Gaussian weights": STANDARD,
    "normalised inputs": NORMALISED,
}
