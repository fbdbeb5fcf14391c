"""Read an attention layer off the program that it expands to."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import AttentionLayer
from attncheck.expansion import AttentionProgram, expand
from attncheck.program import MatMul, Step
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.draws import Draws
from attncheck.simulators.interpret import Multiplier, interpret
from attncheck.simulators.matrix_free import MatrixFreeMultiplier

FloatArray = NDArray[np.float64]


@functools.lru_cache(maxsize=64)
def _plan(layer: AttentionLayer) -> tuple[AttentionProgram, tuple[Step, ...]]:
    expansion = expand(layer)
    return expansion, expansion.program.steps()


def draw_direct(layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator) -> Draws:
    """Draw `layer` with literal weight matrices, a fresh set for every draw."""
    return _draw(layer, size, coordinates, rng, DirectMultiplier)


def draw_matrix_free(layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator) -> Draws:
    """Draw `layer` exactly in law without any weight matrix."""
    return _draw(layer, size, coordinates, rng, MatrixFreeMultiplier)


def _draw(
    layer: AttentionLayer,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    multiplier: Callable[[int, np.random.Generator], Multiplier],
) -> Draws:
    expansion, steps = _plan(layer)
    values = interpret(steps, layer.width, size, coordinates, expansion.inputs, multiplier(layer.width, rng), rng)
    inputs = values.stack(expansion.inputs)
    grams = functools.partial(np.repeat, repeats=layer.group_size, axis=1)
    score_shape = (size, layer.num_heads, layer.seq_len, layer.seq_len)
    return Draws(
        outputs=values.stack(expansion.outputs),
        scores=values.stack(expansion.scores).reshape(score_shape),
        inputs=inputs[:, :, :coordinates].copy(),
        input_gram=_gram(inputs),
        key_gram=grams(np.stack([_gram(values.stack(group)) for group in expansion.keys], axis=1)),
        value_gram=grams(np.stack([_gram(values.stack(group)) for group in expansion.values], axis=1)),
    )


def _gram(vectors: FloatArray) -> FloatArray:
    """Return the Gram matrices of (draws, m, n) vectors, divided by n."""
    return vectors @ vectors.swapaxes(-1, -2) / vectors.shape[-1]


def entries_per_draw(layer: AttentionLayer) -> tuple[int, int]:
    """Return how many vector entries, and how many weight entries at once, a direct draw holds."""
    expansion, _ = _plan(layer)
    nodes = expansion.program.nodes
    vectors = sum(node.length(layer.width) for node in nodes if not isinstance(node, MatMul))
    vectors += sum(node.length(layer.width) for node in nodes if isinstance(node, MatMul))
    weights = max(int(np.prod(weight.shape(layer.width))) for weight in expansion.program.weights)
    return vectors, weights
