"""Draws from the conjectured limit of a stack."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.draws import StackDraws
from attncheck.layers.kernel import input_covariance
from attncheck.layers.stack import AttentionStack
from attncheck.simulators.linalg import lower_root
from attncheck.theory.stacks.recursion import draw_normals, recur


def draw_limit_stack(stack: AttentionStack, size: int, coordinates: int, rng: np.random.Generator) -> StackDraws:
    """Draw from the conjectured limit: coordinates of a draw share scores and are independent given them."""
    made = recur(stack, draw_normals(stack, size, rng))
    shape = (size, stack.seq_len, coordinates)
    stream = lower_root(input_covariance(stack.layer.inputs)) @ rng.standard_normal(shape)
    streams = []
    for k in range(stack.depth):
        streams.append(stream)
        outputs = lower_root(made.outputs[:, k]) @ rng.standard_normal(shape)
        stream = (stream + outputs if stack.residual else outputs) / _positive(made.scales[:, k, 0])
        if stack.perceptron:
            outputs = lower_root(made.perceptrons[:, k]) @ rng.standard_normal(shape)
            stream = (stream + outputs if stack.residual else outputs) / _positive(made.scales[:, k, 1])
    kernels = made.roots @ made.roots.swapaxes(-1, -2)
    return StackDraws(outputs=stream, scores=made.scores, streams=np.stack(streams, axis=1), grams=kernels)


def _positive(scales: FloatArray) -> FloatArray:
    """Return divisors: scales (size, s) with 0 replaced by 1, and an axis for neurons."""
    return np.where(scales > 0, scales, 1.0)[..., None]


def limit_entries(stack: AttentionStack, coordinates: int) -> int:
    """Bound the float64 entries of one draw of the limit, 128 s of which are points of an expansion."""
    s, heads = stack.seq_len, stack.num_heads
    return stack.depth * (4 * heads * s**2 + 18 * s**2 + 3 * s * coordinates) + 8 * heads * s**2 + 128 * s
