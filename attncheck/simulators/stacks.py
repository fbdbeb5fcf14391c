"""Finite-width draws of a stack, from its program or layer by layer without matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

import attncheck.layers.nonlinearity as nonlinearity
from attncheck._lib.arrays import FloatArray
from attncheck.layers.draws import StackDraws
from attncheck.layers.norm import normalised
from attncheck.layers.program import Node, Step
from attncheck.layers.program.extent import Entries, entries_of
from attncheck.layers.stack import AttentionStack
from attncheck.layers.stack_program import Perceptron, StackProgram
from attncheck.simulators.collapsed import attend, draw_heads, draw_stream, output_covariance
from attncheck.simulators.interpret import interpret
from attncheck.simulators.linalg import gram_of, gram_root
from attncheck.simulators.multipliers import Matrices


def draw_collapsed_stack(stack: AttentionStack, size: int, coordinates: int, rng: np.random.Generator) -> StackDraws:
    """Draw a stack exactly in law in O(s n + H s³) operations per layer."""
    stream = draw_stream(stack.layer, size, rng)
    streams, scores, grams = [], [], []
    for k, layer in enumerate(stack.layers, 1):
        inputs = normalised(layer.norm, nonlinearity.of_inputs(layer.inputs)(stream))
        streams.append(stream[..., :coordinates].copy())
        if k == stack.depth and not stack.post_norm and not stack.mlp:  # a post-norm or perceptron needs all neurons
            drawn = attend(layer, inputs, coordinates, rng)
            assert drawn.input_gram is not None
            outputs, gram, layer_scores = drawn.outputs, drawn.input_gram, drawn.scores
        else:
            gram = gram_of(inputs)
            root = gram_root(gram)
            layer_scores, _, values = draw_heads(layer, size, root.shape[-1], rng).of(layer, root)
            outputs = gram_root(output_covariance(layer, layer_scores, values)) @ rng.standard_normal(stream.shape)
        stream = stream[..., : outputs.shape[-1]] + outputs if stack.residual else outputs
        stream = normalised(stack.post_norm, stream)
        if stack.perceptron:
            outputs = draw_perceptron(stack.perceptron, normalised(layer.norm, stream), rng)
            stream = normalised(stack.post_norm, stream + outputs if stack.residual else outputs)
        scores.append(layer_scores)
        grams.append(gram)
    return StackDraws(
        outputs=stream[..., :coordinates].copy(),
        scores=np.stack(scores, axis=1),
        streams=np.stack(streams, axis=1),
        grams=np.stack(grams, axis=1),
    )


def draw_perceptron(perceptron: Perceptron, inputs: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw W² φ(W¹ x) exactly in law, (size, seq_len, width).

    Over positions, hidden neurons before φ are independent N(0, std² G) vectors, where G is the inputs' Gram matrix.
    Output neurons have the same law with the Gram matrix of the images under φ.
    """
    normals = rng.standard_normal((*inputs.shape[:-1], perceptron.neurons))
    covariance = perceptron_covariance(perceptron, gram_root(gram_of(inputs)), normals)
    return np.asarray(gram_root(covariance) @ rng.standard_normal(inputs.shape))


def perceptron_covariance(perceptron: Perceptron, root: FloatArray, normals: FloatArray) -> FloatArray:
    """Return the covariance of output neurons, given the normals (size, s, m) of hidden neurons."""
    images = perceptron.phi(perceptron.std * (root @ normals))
    return np.asarray(perceptron.std**2 / perceptron.neurons * (images @ images.swapaxes(-1, -2)))


@functools.lru_cache(maxsize=8)
def _plan(stack: AttentionStack) -> tuple[StackProgram, tuple[Step, ...]]:
    expansion = stack.expand()
    return expansion, expansion.program.steps()


def draw_stack_program(
    stack: AttentionStack,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    multiplier: Matrices,
) -> StackDraws:
    """Draw a stack by interpreting its program, with weights from ``multiplier(width, rng)``."""
    expansion, steps = _plan(stack)
    keep = {node for layer in expansion.layers for node in layer.inputs}
    norms: dict[Node, Callable[[FloatArray], FloatArray]] = {}
    if stack.layer.norm:
        read = keep.union(*expansion.reads)
        norms |= dict.fromkeys(read, functools.partial(normalised, stack.layer.norm))
    if stack.post_norm:
        after = [node for stream in (*expansion.between, *expansion.streams[1:]) for node in stream]
        norms |= dict.fromkeys(after, functools.partial(normalised, stack.post_norm))
    multiply = multiplier(stack.width, rng)
    values = interpret(steps, stack.width, size, coordinates, keep | set(norms), multiply, rng, normalise=norms)
    inputs = np.stack([values.stack(layer.inputs) for layer in expansion.layers], axis=1)
    streams = np.stack([values.stack(nodes, coordinates) for nodes in expansion.streams], axis=1)
    shape = (size, stack.num_heads, stack.seq_len, stack.seq_len)
    return StackDraws(
        outputs=streams[:, -1].copy(),
        scores=np.stack([values.stack(layer.scores).reshape(shape) for layer in expansion.layers], axis=1),
        streams=streams[:, :-1].copy(),
        grams=gram_of(inputs),
    )


def collapsed_entries(stack: AttentionStack, coordinates: int) -> int:
    """Return a bound on the entries of one draw without matrices."""
    s, heads = stack.seq_len, stack.num_heads
    stored = stack.depth * (heads * s**2 + s * (s + coordinates))
    neurons = 6 + 2 * bool(stack.layer.norm or stack.post_norm) + 3 * stack.mlp_ratio * bool(stack.mlp)
    return neurons * s * stack.width + 16 * heads * s**2 + (3 * heads + 6) * s * coordinates + 2 * stored


def literal_entries(stack: AttentionStack) -> Entries:
    """Return the memory bounds of a draw of the stack's program."""
    return entries_of(_plan(stack)[0].program, stack.width)
