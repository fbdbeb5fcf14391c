"""Deep stacks, the paper's open problem: they approach the conjectured limit as 1/n, and not a wrong one.

The recursion, which passes each layer the random kernel made by the scores before it, is a conjecture.
"""

from __future__ import annotations

from attncheck._lib.streams import digest
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.stack import AttentionStack
from attncheck.paper.stacks.distance import PARTS, averaged_parts, difference_parts, measured
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import Statement
from attncheck.strategies import stacks

_WIDTHS, _DRAWS = (32, 256), 960
# Bound on the effect of terms of order 1/n² on the order between the two widths, and degrees of freedom of errors.
_CURVATURE, _DF = 0.1, PARTS - 1
_LAYER = AttentionLayer(width=8, seq_len=2, num_heads=1)


def _distances(
    stack: AttentionStack, run_seed: int, widths: tuple[int, int] = _WIDTHS, averaged: bool = False
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the distances from the limit at two widths, and their standard errors.

    `averaged` uses the wrong recursion, with mean kernels.
    """
    seed, position = int(digest([run_seed, "stacks", stack.key]), 16), stack.seq_len - 1
    gap = averaged_parts(stack, 8 * _DRAWS, seed, position)[:, -1] if averaged else 0.0
    narrow, wide = (
        measured(difference_parts(stack.at_width(n), _DRAWS, seed, position, last=True)[:, -1] + gap, stack.depth, n)
        for n in widths
    )
    return (narrow.ks, wide.ks), (narrow.ks_error, wide.ks_error)


@theory("stacks.limit", stacks(min_depth=2, max_depth=3, max_entries=9, regular=True))
def test_stacks_approach_the_conjectured_limit(stack: AttentionStack, run_seed: int, note: Statement) -> None:
    """The neighbour is order 0, no approach: the order of single stacks is hardly better known."""
    note.order("order", *_distances(stack, run_seed), _WIDTHS, neighbours=[0.0], allowance=_CURVATURE, df=_DF)


@theory(
    "stacks.order",
    stack=[
        AttentionStack(layer=_LAYER, depth=2),
        AttentionStack(layer=_LAYER.replace(num_heads=2, mask="causal"), depth=3, activations=("tanh", "relu", "erf")),
        AttentionStack(layer=_LAYER.replace(seq_len=3), depth=2, residual=True),
    ],
)
def test_stacks_approach_it_as_one_over_n(stack: AttentionStack, run_seed: int, note: Statement) -> None:
    """The neighbour is order -1/2, that of cyclically shared weights."""
    note.order("order", *_distances(stack, run_seed), _WIDTHS, allowance=_CURVATURE, df=_DF)


_LINEAR = AttentionLayer(width=8, seq_len=2, num_heads=1, attention_map="linear", query_std=2.0)
_SIGMOID = AttentionLayer(width=8, seq_len=4, num_heads=1, attention_map="sigmoid", query_std=2.0)


@theory(
    "stacks.forgetful_recursion",
    stack=[
        AttentionStack(layer=_LINEAR, depth=2),
        AttentionStack(layer=_LINEAR, depth=2, activations=("relu", "tanh"), residual=True),
        AttentionStack(layer=_SIGMOID, depth=2),
    ],
)
def test_a_recursion_that_forgets_the_scores_is_told_apart(
    stack: AttentionStack, run_seed: int, note: Statement
) -> None:
    """With mean kernels the limit is another law, and the distance from it stops falling.

    In these stacks a layer's scores strongly change the next kernel; with softmax and unit variances the two output
    laws differ by less than 0.001.
    """
    widths = (128, 1024)
    found = _distances(stack, run_seed, widths, averaged=True)
    # Only a fraction of the distance at the smaller width falls.
    note.order("order", *found, widths, 0.0, neighbours=[-1.0], allowance=2.0 * _CURVATURE, df=_DF)
