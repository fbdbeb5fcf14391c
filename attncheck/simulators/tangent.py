"""The tangent kernel of a layer: Θ^{ii'}_{rr'} = ⟨∂y_r^i/∂θ, ∂y_r'^{i'}/∂θ⟩ over the entries of all its matrices.

Matrices are W = σ ω/√fan-in with N(0, 1) entries ω, and θ is all of ω. Each gradient of an output by the ω of a head is
an outer product of two vectors, or a sum of two if W^Q = W^K: inner products of gradients are products of inner
products, so that no gradient is stored entry by entry.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Batch
from attncheck.layers.parts import refuse_parts
from attncheck.simulators.blocks import DrawPlan
from attncheck.simulators.collapsed import draw_inputs, input_entries


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TangentDraws(Batch):
    """Draws of a layer with its tangent kernel.

    Attributes
    ----------
    outputs : ndarray, shape (size, seq_len, coordinates)
    scores : ndarray, shape (size, num_heads, seq_len, seq_len)
    parts : ndarray, shape (size, 4, coordinates, coordinates, seq_len, seq_len)
        Contributions of W^Q (or a tied matrix), W^K, W^V and W^O to Θ^{ii'}_{rr'}, with axes i, i', r, r'.
    """

    scores: FloatArray
    parts: FloatArray

    @property
    def kernel(self) -> FloatArray:
        """Tangent kernel Θ, (size, coordinates, coordinates, seq_len, seq_len)."""
        return np.asarray(self.parts.sum(axis=1))


def draw_tangent(layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator) -> TangentDraws:
    """Draw layers with explicit matrices, and return their outputs, scores and tangent kernels."""
    n, nu, heads, groups = layer.width, layer.head_width, layer.num_heads, layer.kv_heads
    shapes = {
        "query": (heads, n, nu),
        "key": (groups, n, nu),
        "value": (groups, n, nu),
        "output": (heads, nu, coordinates),
    }
    inputs = draw_inputs(layer, size, rng)
    matrices = {name: rng.standard_normal((size, *shape)) for name, shape in shapes.items()}
    if layer.tied_query_key:
        matrices["key"] = matrices["query"]
    return literal_kernel(layer, inputs, **matrices)


def literal_kernel(
    layer: AttentionLayer,
    inputs: FloatArray,
    query: FloatArray,
    key: FloatArray,
    value: FloatArray,
    output: FloatArray,
) -> TangentDraws:
    """Return the tangent kernel of layers with given matrices.

    The matrices contain the parameters, which are standard normal; scaling by std/√fan-in follows. Their shapes are
    (size, num_heads, width, ν) for `query`, (size, kv_heads, width, ν) for `key` and `value`, and
    (size, num_heads, ν, k) for `output`, with ν neurons per head and k neurons of the output.
    """
    s, n, nu, shared = layer.seq_len, layer.width, layer.head_width, layer.group_size
    X, k, to_head, from_head = inputs, output.shape[-1], n**-0.5, nu**-0.5
    K, V = (
        std * to_head * np.repeat(X[:, None] @ matrix, shared, axis=1)
        for std, matrix in ((layer.key_std, key), (layer.value_std, value))
    )
    Q, O = layer.query_std * to_head * X[:, None] @ query, layer.output_std * from_head * output  # noqa: E741
    f = layer.score_factor * from_head
    scores = f * Q @ K.swapaxes(-1, -2)
    projected = (V @ O).swapaxes(-1, -2)
    slopes = layer.map.slopes(scores[None], layer.visible, np.moveaxis(projected, 2, 0))
    c = layer.head_factor * f * np.moveaxis(slopes, 0, 2)
    A = layer.head_factor * layer.attention_weights(scores)
    every = np.broadcast_to(X[:, None, None], (len(X), layer.num_heads, 1, s, n))
    # The gradient of y_r^i with respect to a matrix of a head is the outer product of two vectors. Each pair below has
    # both, (size, heads, i or 1, r or 1, neurons or inputs of the head); the length 1 stands for all i or all r.
    by_query = layer.query_std * to_head * c @ K[:, :, None], every
    by_key = Q[:, :, None], layer.key_std * to_head * c @ every
    by_value = O.swapaxes(-1, -2)[:, :, :, None], layer.value_std * to_head * (A @ X[:, None])[:, :, None]
    by_output = layer.output_std * from_head * (A @ V)[:, :, None], np.eye(k)[None, None, :, None]
    if layer.tied_query_key:
        of_queries = _inner_products([by_query, by_key], layer.num_heads)
        of_keys = np.zeros_like(of_queries)
    else:
        of_queries = _inner_products([by_query], layer.num_heads)
        of_keys = _inner_products([by_key], layer.kv_heads)
    of_values, of_outputs = _inner_products([by_value], layer.kv_heads), _inner_products([by_output], layer.num_heads)
    parts = np.stack([of_queries, of_keys, of_values, of_outputs], axis=1)
    return TangentDraws(np.einsum("narj,naij->nri", A, projected, optimize=True), scores, parts)


def _inner_products(gradient: Sequence[tuple[FloatArray, FloatArray]], groups: int) -> FloatArray:
    """Return the inner products of output gradients, (size, k, k, s, s), with respect to the matrices of one role.

    The role is "query", for example. `groups` is the number of these matrices; the heads of a group share one. Each
    pair in `gradient` consists of two vectors for each draw, head, neuron and position, and the gradient is the sum of
    the outer products of the pairs.
    """

    def grouped(vectors: FloatArray) -> FloatArray:
        return vectors.reshape(len(vectors), min(groups, vectors.shape[1]), -1, *vectors.shape[2:])

    total: FloatArray | float = 0.0
    for one, partner in itertools.product(gradient, repeat=2):
        row_products, column_products = (
            np.einsum("nbgire,nbhjqe->nbghijrq", grouped(first), grouped(second), optimize=True)
            for first, second in zip(one, partner, strict=True)
        )
        total = total + (row_products * column_products).sum(axis=(1, 2, 3))
    return np.asarray(total)


def tangent_work(layer: AttentionLayer, coordinates: int) -> DrawPlan[TangentDraws]:
    """Return the plan to draw the kernel, or raise `InputError` for a layer part without a tangent kernel."""
    refuse_parts(layer, "tangent kernel")
    s, heads, k, shared = layer.seq_len, layer.num_heads, coordinates, layer.group_size
    n, nu = layer.width, layer.head_width
    products = 12 * k * k * s * s * heads * shared + 8 * heads * k * s * s
    vectors = heads * (n + nu) * (4 * k * s + 2 * k + 2 * s)
    entries = products + vectors + 4 * heads * n * nu + input_entries(layer)
    return DrawPlan(draw_tangent, layer, coordinates, entries)
