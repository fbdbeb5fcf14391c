"""Draws of an attention layer from its program."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.layers.expansion import AttentionProgram, expand
from attncheck.layers.norm import normalised
from attncheck.layers.parts.qk_norm import score_vectors
from attncheck.layers.parts.scores import whole_vectors, with_offsets
from attncheck.layers.program import Node, Step
from attncheck.simulators.interpret import interpret
from attncheck.simulators.linalg import gram_of
from attncheck.simulators.multipliers import Matrices


@functools.lru_cache(maxsize=32)
def _plan(layer: AttentionLayer) -> tuple[AttentionProgram, tuple[Step, ...]]:
    expansion = expand(layer)
    return expansion, expansion.program.steps()


def draw_program(
    layer: AttentionLayer,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    multiplier: Matrices,
) -> Draws:
    """Draw `layer` by interpreting its program; ``multiplier(width, rng)`` draws the products W h of its matrices."""
    expansion, steps = _plan(layer)
    multiply, turn = multiplier(layer.width, rng), None
    if whole_vectors(layer):
        # The left and right vectors of a step of scores are one head's queries and keys at all positions, in order.
        turn = functools.partial(score_vectors, layer)
    normalise: dict[Node, Callable[[FloatArray], FloatArray]] = _biases(layer, expansion, size, rng)
    if layer.norm:
        normalise |= dict.fromkeys(expansion.inputs, functools.partial(normalised, layer.norm))
    values = interpret(steps, layer.width, size, coordinates, expansion.inputs, multiply, rng, turn, normalise)
    inputs = values.stack(expansion.inputs)
    spread = functools.partial(np.repeat, repeats=layer.group_size, axis=1)
    score_shape = (size, layer.num_heads, layer.seq_len, layer.seq_len)
    return Draws(
        outputs=values.stack(expansion.outputs),
        scores=values.stack(expansion.scores).reshape(score_shape),
        inputs=inputs[:, :, :coordinates].copy(),
        input_gram=gram_of(inputs),
        key_gram=spread(np.stack([gram_of(values.stack(group)) for group in expansion.keys], axis=1)),
        value_gram=spread(np.stack([gram_of(values.stack(group)) for group in expansion.values], axis=1)),
        keys=spread(np.stack([values.stack(group) for group in expansion.keys], axis=1))
        if layer.rotary_base is not None
        else None,
    )


def _biases(
    layer: AttentionLayer, expansion: AttentionProgram, size: int, rng: np.random.Generator
) -> dict[Node, Callable[[FloatArray], FloatArray]]:
    """Return functions that add the position bias to a head's scores, keyed by the head's first score."""
    zeros = np.zeros((size, layer.num_heads, 1, 1))
    biases = with_offsets(layer, zeros, rng)
    if biases is zeros:
        return {}
    firsts = expansion.scores[:: layer.seq_len**2]
    return {first: functools.partial(np.add, biases[:, head]) for head, first in enumerate(firsts)}


def program_entries(layer: AttentionLayer) -> int:
    """Return a bound on the memory of the program's own objects, 560 bytes per line, in units of a float64 entry."""
    inputs = 6 if layer.position_std else 4
    return 70 * layer.seq_len * (inputs + 2 * layer.kv_heads + layer.num_heads * (2 + layer.seq_len))


def vector_entries(layer: AttentionLayer, projected: int) -> int:
    """Return a bound on the entries of a draw's vectors and scores.

    `projected` is the number of neurons of the vectors W^O W^V x^j that are computed.
    """
    n, s, heads = layer.width, layer.seq_len, layer.num_heads
    inputs = (5 if layer.position_std else 3) + bool(layer.norm)
    vectors = n * (2 + inputs * s) + s * layer.head_width * (heads + 2 * layer.kv_heads) + s * heads * projected
    return 2 * vectors + 8 * heads * s**2 + key_entries(layer)


def key_entries(layer: AttentionLayer) -> int:
    """Return a bound on the entries of queries and keys per draw; 0 if scores depend on their Gram matrices only."""
    return 0 if not whole_vectors(layer) else 6 * layer.num_heads * layer.seq_len * layer.head_width


def matrix_entries(layer: AttentionLayer) -> int:
    """Return the number of matrix entries per draw that the direct method holds in memory.

    The method holds one matrix of each shape at a time.
    """
    n, nu = layer.width, layer.head_width
    return n * n if nu == n else n * n + 2 * n * nu
