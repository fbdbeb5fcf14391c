"""Blocks and wrong neighbours: misplaced norms, a missing residual or second norm.

Two samples of one law exceed the Kolmogorov–Smirnov distance MOST with a chance of 1e-9, over all functionals here.
Laws with samples 2 MOST apart are MOST apart, with the same confidence.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, simulate_chunks
from attncheck._lib.arrays import FloatArray
from attncheck.layers.norm import normalised
from attncheck.looks.examples import draw_examples
from attncheck.methods import Method
from attncheck.simulators.stacks import draw_perceptron
from attncheck.strategies import stacks

_LAYER = AttentionLayer(width=5, seq_len=3, num_heads=2, query_std=1.5, activation="identity", input_std=2.0)
PRE = AttentionStack(layer=_LAYER.replace(norm="rms"), depth=1, residual=True, mlp="gelu", mlp_ratio=2)
PRE_LAYER = PRE.replace(layer=_LAYER.replace(norm="layer"))
POST = PRE.replace(layer=_LAYER, post_norm="rms")
POST_LAYER = POST.replace(post_norm="layer")
BLOCKS = (PRE, PRE_LAYER, POST, POST_LAYER)
SIZE = 20_000
MOST = float(np.sqrt(np.log(2.0 * 200 / 1e-9) / SIZE))


def numbers(y: FloatArray) -> FloatArray:
    """Return functionals of outputs (size, s, k): one position, two, and lengths, (3, size).

    A norm over two neurons makes outputs ±1: without rounding, the law of rounding errors would be compared.
    """
    return np.round(np.stack([y[:, -1, 0], y[:, 0, 0] * y[:, -1, 0], (y**2).sum(axis=(1, 2))]), 9)


def apart(one: FloatArray, other: FloatArray) -> float:
    pairs = zip(numbers(one), numbers(other), strict=True)
    return max(float(stats.ks_2samp(a, b, method="asymp").statistic) for a, b in pairs)


def drawn(stack: AttentionStack, seed: int, method: Method = "direct") -> FloatArray:
    # In chunks: scores of all draws would take hundreds of megabytes.
    drawn = simulate_chunks(stack, SIZE, 1_000, seed, method, coordinates=stack.width)
    return np.concatenate([chunk.outputs for chunk in drawn])


def composed(stack: AttentionStack, seed: int, second: bool = True) -> FloatArray:
    """Draw a block of depth 1 by attention and perceptron, with or without the latter's norm."""
    stream = drawn(stack.replace(mlp=None, mlp_ratio=4, mlp_std=1.0), seed, "collapsed")
    before, after = (stack.layer.norm, stack.post_norm) if second else (None, None)
    assert stack.perceptron is not None
    added = draw_perceptron(stack.perceptron, normalised(before, stream), np.random.default_rng(seed))
    return normalised(after, stream + added)


def swapped(stack: AttentionStack) -> AttentionStack:
    """Return the block with the norms before and after the sum exchanged."""
    return stack.replace(layer=stack.layer.replace(norm=stack.post_norm), post_norm=stack.layer.norm)


@pytest.mark.sampled
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


@functools.cache
def random_blocks() -> list[AttentionStack]:
    """Return four random blocks, drawn where they are compared: each process would draw them to collect tests."""
    return draw_examples(stacks(max_depth=2, max_entries=200, blocks=True), 4, 0, "random blocks")


@pytest.mark.sampled
@pytest.mark.parametrize("index", range(4))
def test_readings_of_random_blocks_are_of_one_law(index: int) -> None:
    stack = random_blocks()[index]
    ours = drawn(stack, 6, "collapsed")
    for seed, method in ((7, "direct"), (8, "matrix-free")):
        assert apart(ours, drawn(stack, seed, method)) < MOST, stack  # type: ignore[arg-type]  # method is a literal
