"""Layers with each field and part in several shapes, stacks and a strategy for them, and a program."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from attncheck import AttentionLayer, AttentionStack, Program
from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck.layers.inputs import ACTIVATIONS, NORMS
from attncheck.layers.parts.attention_map import Linear
from attncheck.strategies import STDS, layers


def prefix(i: IntArray, j: IntArray) -> BoolArray:
    """See the first two positions, and everything before oneself."""
    return (j < 2) | (j <= i)


def squared_relu(scores: FloatArray, visible: BoolArray) -> FloatArray:
    """Return max(p, 0)² over the number of visible positions."""
    return np.asarray(np.where(visible, np.maximum(scores, 0.0) ** 2, 0.0) / visible.sum(axis=-1, keepdims=True))


#: Narrow, singular and long layers, with each map, scaling, mask and grouping, positions, ties and norms.
PLAIN = (
    AttentionLayer(width=1, seq_len=1, num_heads=1),
    AttentionLayer(width=1, seq_len=3, num_heads=2, activation="relu"),
    AttentionLayer(width=1, seq_len=2, num_heads=2, head_dim=3, attention_map="relu", clip=1.0, input_correlation=0.5),
    AttentionLayer(width=3, seq_len=5, num_heads=2, clip=1.0, input_correlation=0.5),
    AttentionLayer(
        width=3, seq_len=4, num_heads=4, num_kv_heads=1, head_dim=8, attention_map="linear", mask="causal", key_std=0.7
    ),
    AttentionLayer(width=8, seq_len=5, num_heads=2, head_dim=3, value_std=0.7, output_std=1.5).replace(
        attention_map="sigmoid", activation="identity", input_correlation=0.2
    ),
    AttentionLayer(width=8, seq_len=3, num_heads=3, attention_map="relu", head_scaling=False, activation="tanh"),
    AttentionLayer(width=8, seq_len=2, num_heads=2, head_dim=2, score_scaling="1/n", input_correlation=1.0),
    AttentionLayer(width=8, seq_len=3, num_heads=2, score_scaling="n^-0.75", query_std=2.0, key_std=1.5),
    AttentionLayer(width=8, seq_len=3, num_heads=2, head_dim=4, score_scaling="n^-0.25", query_std=0.7),
    AttentionLayer(width=4, seq_len=6, num_heads=4, num_kv_heads=2, mask="causal", activation="erf").replace(
        input_std=2.0, query_std=1.5
    ),
    AttentionLayer(width=3, seq_len=4, num_heads=2, position_std=1.5, mask="causal", clip=2.0),
    AttentionLayer(
        width=8, seq_len=3, num_heads=2, position_std=0.7, position_reach=2.0, input_correlation=1.0, activation="relu"
    ),
    AttentionLayer(width=3, seq_len=4, num_heads=2, head_dim=2, query_std=1.5, key_std=1.5).replace(
        tied_query_key=True, score_scaling="1/n"
    ),
    AttentionLayer(width=5, seq_len=3, num_heads=2, activation="relu", query_std=1.5, norm="rms"),
    AttentionLayer(
        width=4, seq_len=4, num_heads=2, head_dim=3, num_kv_heads=1, clip=1.0, position_std=0.5, norm="layer"
    ),
)

#: Each optional part, in several shapes.
PARTS: dict[str, AttentionLayer] = {
    "window": AttentionLayer(width=8, seq_len=5, num_heads=2, window=2),
    "causal window": AttentionLayer(width=6, seq_len=4, num_heads=4, num_kv_heads=2, mask="causal", window=2),
    "softcap": AttentionLayer(width=8, seq_len=4, num_heads=2, softcap=0.3, key_std=2.0, mask="causal"),
    "capped linear": AttentionLayer(width=4, seq_len=3, num_heads=1, head_dim=3, softcap=1.0, attention_map="linear"),
    "sinks by head": AttentionLayer(width=8, seq_len=3, num_heads=2, sink=(-1.0, 2.0), mask="causal"),
    "sink": AttentionLayer(width=6, seq_len=1, num_heads=2, sink=1.0),
    "sink, cap, window": AttentionLayer(width=8, seq_len=5, num_heads=2, sink=-1.0, softcap=1.5, window=3),
    "slopes": AttentionLayer(width=8, seq_len=4, num_heads=2, bias_slopes=(2.0, 0.25), attention_map="sigmoid"),
    "alibi": AttentionLayer(width=6, seq_len=5, num_heads=3, bias_slopes="alibi", query_std=0.5, key_std=0.25),
    "bias table": AttentionLayer(width=6, seq_len=3, num_heads=1, bias_std=1.0, attention_map="linear"),
    "both biases": AttentionLayer(
        width=8, seq_len=4, num_heads=4, num_kv_heads=2, bias_std=1.0, bias_slopes=(1, 0, 2, 0)
    ),
    "qk norm": AttentionLayer(width=8, seq_len=3, num_heads=2, qk_norm=True, query_std=2.0, input_std=1.5),
    "qk norm of small heads": AttentionLayer(
        width=8, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=2, qk_norm=True, mask="causal", attention_map="linear"
    ),
    "own mask": AttentionLayer(width=8, seq_len=4, num_heads=2, mask=prefix),
    "own map": AttentionLayer(width=8, seq_len=4, num_heads=2, attention_map=squared_relu, mask="causal"),
}

ROTARY = {
    "rotary, grouped": AttentionLayer(
        width=8, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=4, rotary_base=10.0, input_correlation=0.5
    ),
    "rotary, QK norm": AttentionLayer(
        width=6, seq_len=3, num_heads=1, head_dim=6, rotary_base=10.0, qk_norm=True, input_correlation=0.8
    ),
}

# Stacks with norms, with perceptrons, with positions and ties, and with none of these.
RELU = AttentionLayer(width=5, seq_len=3, num_heads=2, query_std=1.5, activation="relu")
PRE_RMS = AttentionStack(layer=RELU.replace(norm="rms"), depth=2, residual=True)
PRE_LAYER = AttentionStack(layer=RELU.replace(norm="layer"), depth=2, residual=True)
POST_RMS = AttentionStack(layer=RELU, depth=2, residual=True, post_norm="rms")
BOTH = AttentionStack(
    layer=RELU.replace(norm="layer", num_kv_heads=1, head_dim=3, mask="causal"), depth=2, post_norm="layer"
)
NORMED = (PRE_RMS, PRE_LAYER, POST_RMS, BOTH)

ENCODER = RELU.replace(activation="identity")
PRE_BLOCK = AttentionStack(
    layer=ENCODER.replace(norm="rms"), depth=2, residual=True, mlp="gelu", mlp_ratio=2, mlp_std=1.3
)
POST_BLOCK = AttentionStack(layer=ENCODER, depth=2, residual=True, post_norm="layer", mlp="relu")
PLAIN_BLOCK = AttentionStack(layer=ENCODER.replace(mask="causal", activation="tanh"), depth=2, mlp="relu", mlp_ratio=1)
POST_GELU = POST_BLOCK.replace(layer=ENCODER.replace(input_std=0.05), depth=1, post_norm="rms", mlp="gelu")
BLOCKS = (PRE_BLOCK, POST_BLOCK, PLAIN_BLOCK)

# With positions, and with queries tied to keys.
PLACED = AttentionStack(layer=AttentionLayer(width=5, seq_len=3, num_heads=1, position_std=1.5), depth=2, residual=True)
TIED = AttentionStack(
    layer=AttentionLayer(width=6, seq_len=3, tied_query_key=True, score_scaling="1/n", activation="relu"), depth=2
)
# Neither norm nor perceptron.
BARE = (
    AttentionStack(layer=AttentionLayer(width=4, seq_len=2, num_heads=2), depth=3, residual=True),
    AttentionStack(
        layer=AttentionLayer(width=4, seq_len=2, num_heads=4, num_kv_heads=2, head_dim=3, mask="causal", query_std=1.5),
        depth=2,
        activations=("tanh", "relu"),
    ),
    AttentionStack(
        layer=AttentionLayer(width=6, seq_len=2, num_heads=2, attention_map="sigmoid", input_correlation=0.5),
        depth=2,
        activations=("relu", "erf"),
        residual=True,
    ),
    PLACED,
    TIED,
)


def reused() -> Program:
    """Return a program with a mean, correlated initial vectors, and matrices of three shapes used twice."""
    program = Program()
    a, b = program.initials(["a", "b"], [0.5, -1.0], [[4.0, 1.0], [1.0, 1.0]])
    square, down, up = program.weight("W", 1.5), program.weight("D", rows=2), program.weight("U", 0.5, columns=2)
    first = program.matmul(square, a)
    again = program.matmul(square, program.nonlin(np.tanh, first))
    low = [program.matmul(down, vector) for vector in (b, again)]
    program.score(low[0], low[1], 0.5)
    program.nonlin(np.add, program.matmul(up, low[0]), program.matmul(up, low[1]))
    return program


# Each linear attention layer cubes the scale of its stream; deeper stacks overflow float64.
_DEEPEST_LINEAR = 3


@st.composite
def stacks(draw: st.DrawFn, *, max_entries: int, max_depth: int = 4, blocks: bool = False) -> AttentionStack:
    """Draw stacks that repeat one attention layer, each time with any activation before it.

    Parameters
    ----------
    max_entries : int
        Maximum weight entries of one literal draw of one layer, including its perceptron.
    max_depth : int
        Maximum depth; stacks of linear attention have at most 3 layers.
    blocks : bool
        Whether to include norms before attention and after sums, and perceptrons, at random; the paper's layers
        have none.
    """
    layer = draw(layers(max_entries=max_entries))
    depth = draw(st.integers(1, min(max_depth, _DEEPEST_LINEAR) if layer.map == Linear() else max_depth))
    names = draw(st.lists(st.sampled_from(ACTIVATIONS), min_size=depth, max_size=depth))
    stack = AttentionStack(layer=layer, depth=depth, activations=tuple(names), residual=draw(st.booleans()))
    if not blocks:
        return stack
    # Layer norm maps a single neuron to 0.
    norms = st.sampled_from((None, *NORMS) if layer.width > 1 else (None, *NORMS[:1]))
    stack = stack.replace(layer=layer.replace(norm=draw(norms)), post_norm=draw(norms))
    ratios = [m for m in (1, 2, 4) if layer.weight_entries + 2 * m * layer.width**2 <= max_entries]
    if ratios and (mlp := draw(st.sampled_from((None, "relu", "gelu")))):
        stack = stack.replace(mlp=mlp, mlp_ratio=draw(st.sampled_from(ratios)), mlp_std=draw(st.sampled_from(STDS)))
    return stack
