"""A hypothesis strategy for stacks."""

from __future__ import annotations

from hypothesis import strategies as st

from attncheck.layers.inputs import ACTIVATIONS, NORMS
from attncheck.layers.parts.attention_map import Linear
from attncheck.layers.stack import AttentionStack
from attncheck.strategies import STDS, layers

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
