"""Deep stacks, the paper's open problem: the conjectured limit is approached as 1/n, and a wrong one is not.

Properties of the theory rather than of a subject. Nothing here is proved by the paper: the recursion that gives every
layer the random kernel that the scores before it have made is a conjecture.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from attncheck._lib.streams import digest
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.stack import AttentionStack
from attncheck.looks.examples import draw_examples
from attncheck.pytest_plugin import theory
from attncheck.runs.statements import Statement
from attncheck.strategies import stacks
from attncheck.theory.stacks.distance import PARTS, averaged_parts, difference_parts, measured

_WIDTHS, _DRAWS = (32, 256), 640
# Two-sided level 1e-9 for each order and for the mean of several: the errors are those of means of as many parts.
_QUANTILE = float(stats.t.isf(5e-10, PARTS - 1))
# The next order, 1/n², bends the slope between the two widths by less than this (0.08 at most was measured).
_CURVATURE = 0.15
_TOGETHER = 8

_STACKS = stacks(min_depth=2, max_depth=3, max_entries=9, regular=True)


def _order(
    stack: AttentionStack, run_seed: int, widths: tuple[int, int] = _WIDTHS, averaged: bool = False, draws: int = _DRAWS
) -> tuple[float, float]:
    """Return the order at which the distance from the limit falls, and its standard error.

    With `averaged` the distance is that from the wrong recursion, whose kernels are their means.
    """
    seed, position = int(digest([run_seed, "stacks", stack.key]), 16), stack.seq_len - 1
    gap = averaged_parts(stack, 8 * draws, seed, position)[:, -1] if averaged else 0.0
    narrow, wide = (
        measured(difference_parts(stack.at_width(n), draws, seed, position, last=True)[:, -1] + gap, stack.depth, n)
        for n in widths
    )
    reach = math.log(widths[1] / widths[0])
    error = math.hypot(narrow.ks_error / narrow.ks, wide.ks_error / wide.ks) / reach
    return math.log(wide.ks / narrow.ks) / reach, error


@theory("stacks.limit", _STACKS)
def test_stacks_approach_the_conjectured_limit(stack: AttentionStack, run_seed: int, note: Statement) -> None:
    # More draws where few tell nothing apart: the error decides, not the order.
    for draws in (_DRAWS, 4 * _DRAWS, 16 * _DRAWS):
        order, error = _order(stack, run_seed, draws=draws)
        if _CURVATURE + _QUANTILE * error < 1.0:
            break
    note(order=order, error=error)
    assert abs(order + 1.0) < _CURVATURE + _QUANTILE * error, f"order {order:.3f}, error {error:.3f}"
    # No approach at all, order 0, would have been told apart.
    assert _CURVATURE + _QUANTILE * error < 1.0


@theory("stacks.order")
def test_stacks_approach_it_as_one_over_n(run_seed: int, note: Statement) -> None:
    """Together they know the order better: -1/2, that of cyclically shared weights, would have been told apart."""
    found = [_order(stack, run_seed) for stack in draw_examples(_STACKS, _TOGETHER, run_seed, "orders of stacks")]
    orders, errors = np.array(found).T
    half = _CURVATURE + _QUANTILE * float(np.linalg.norm(errors)) / len(errors)
    note(order=orders.mean(), half_width=half)
    assert abs(orders.mean() + 1.0) < half, f"orders {orders.round(3)}, errors {errors.round(3)}"
    assert half < 0.5


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
    """With each kernel replaced by its mean the limit is another law: the distance from it stops falling.

    These are stacks in which the scores of one layer move the next kernel much. With softmax and unit variances they
    hardly do: there the two laws of an output differ by less than 0.001.
    """
    order, error = _order(stack, run_seed, (128, 1024), averaged=True)
    note(order=order, error=error)
    assert order - _QUANTILE * error > -1.0 + _CURVATURE, f"order {order:.3f}, error {error:.3f}"
