"""Blocks and their known-wrong neighbours: norms in another place, a residual or a second norm that is forgotten.

Two samples of one law are further apart, in Kolmogorov and Smirnov's distance, than MOST with a chance of 1e-9, all
numbers of this module together. Laws whose samples are 2 MOST apart are, but for no larger a chance, MOST apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, simulate
from attncheck.layers.norm import normalised
from attncheck.looks.examples import draw_examples
from attncheck.methods import Method
from attncheck.simulators.stacks import draw_perceptron
from attncheck.strategies import stacks

FloatArray = NDArray[np.float64]

_LAYER = AttentionLayer(width=5, seq_len=3, num_heads=2, query_std=1.5, activation="identity", input_std=2.0)
PRE = AttentionStack(layer=_LAYER.replace(norm="rms"), depth=1, residual=True, mlp="gelu", mlp_ratio=2)
PRE_LAYER = PRE.replace(layer=_LAYER.replace(norm="layer"))
POST = PRE.replace(layer=_LAYER, post_norm="rms")
POST_LAYER = POST.replace(post_norm="layer")
BLOCKS = (PRE, PRE_LAYER, POST, POST_LAYER)
SIZE = 20_000
MOST = float(np.sqrt(np.log(2.0 * 200 / 1e-9) / SIZE))


def numbers(y: FloatArray) -> FloatArray:
    """Return numbers of outputs (size, s, k) that see one position, two, and how long vectors are, (3, size)."""
    return np.stack([y[:, -1, 0], y[:, 0, 0] * y[:, -1, 0], (y**2).sum(axis=(1, 2))])


def apart(one: FloatArray, other: FloatArray) -> float:
    pairs = zip(numbers(one), numbers(other), strict=True)
    return max(float(stats.ks_2samp(a, b, method="asymp").statistic) for a, b in pairs)


def drawn(stack: AttentionStack, seed: int, method: Method = "direct") -> FloatArray:
    return simulate(stack, SIZE, seed, method, coordinates=stack.width).outputs


def composed(stack: AttentionStack, seed: int, second: bool = True) -> FloatArray:
    """Draw a block of depth 1 by its attention and a perceptron on it, with the norm of the latter or without."""
    stream = drawn(stack.replace(mlp=None, mlp_ratio=4, mlp_std=1.0), seed, "collapsed")
    before, after = (stack.layer.norm, stack.post_norm) if second else (None, None)
    assert stack.perceptron is not None
    added = draw_perceptron(stack.perceptron, normalised(before, stream), np.random.default_rng(seed))
    return normalised(after, stream + added)


def swapped(stack: AttentionStack) -> AttentionStack:
    """Return the block with the norm that is before attention after the sum, and the other way round."""
    return stack.replace(layer=stack.layer.replace(norm=stack.post_norm), post_norm=stack.layer.norm)


@pytest.mark.parametrize("stack", BLOCKS, ids=AttentionStack.describe)
def test_wrong_blocks_are_rejected_and_the_right_one_is_not(stack: AttentionStack) -> None:
    literal = drawn(stack, 1)
    assert apart(literal, composed(stack, 2)) < MOST
    wrong = {
        "norm in the other place": drawn(swapped(stack), 3, "collapsed"),
        "forgotten residual": drawn(stack.replace(residual=False), 4, "collapsed"),
        "forgotten second norm": composed(stack, 5, second=False),
    }
    found = {name: apart(literal, each) for name, each in wrong.items()}
    assert min(found.values()) > 2.0 * MOST, found


_RANDOM: Any = draw_examples(stacks(max_depth=2, max_entries=200, blocks=True), 8, 0, "random blocks")


@pytest.mark.parametrize("stack", _RANDOM, ids=AttentionStack.describe)
def test_readings_of_random_blocks_are_of_one_law(stack: AttentionStack) -> None:
    ours = drawn(stack, 6, "collapsed")
    for seed, method in ((7, "direct"), (8, "matrix-free")):
        assert apart(ours, drawn(stack, seed, method)) < MOST  # type: ignore[arg-type]
