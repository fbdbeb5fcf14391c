"""The tangent kernel of a layer: Θ^{ii'}_{rr'} = ⟨∂y_r^i/∂θ, ∂y_r'^{i'}/∂θ⟩ over the entries of all its matrices.

Matrices are W = σ ω/√fan-in with N(0, 1) entries ω, and θ is all of ω. With c the derivative of an output neuron
with respect to the scores (``layers.attention_map.weight_slopes``), the four parts are, exactly at every width,

    query   h² f² σ_Q² G_rr' Σ_a c_arᵀ K_a K_aᵀ c'_ar'
    key     h² f² σ_K² Σ_ab (Q_a Q_bᵀ)_rr' c_arᵀ G c'_br'
    value   h² σ_V² Σ_ab (O_a,i · O_b,i') A_ar G A_br'ᵀ
    output  h² σ_O² δ_ii' Σ_a A_ar (V_a V_aᵀ/ν) A_ar'ᵀ

where G = X Xᵀ/n, f is the score factor, h = H^{-1/2}, and b runs over the heads of a's group. The four parts depend on
Gram matrices only, which, given G, are drawn without n × ν matrices.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, weight_slopes
from attncheck.layers.draws import Batch
from attncheck.layers.parts import refuse_parts
from attncheck.simulators.blocks import DrawPlan
from attncheck.simulators.collapsed import draw_heads, draw_inputs, group_grams, input_entries
from attncheck.simulators.linalg import bartlett, gram_of, input_root

#: Parts of the kernel, in axis order.
PARTS = ("query", "key", "value", "output")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TangentDraws(Batch):
    """Draws of a layer with its tangent kernel.

    Attributes
    ----------
    outputs : ndarray, shape (size, seq_len, coordinates)
    scores : ndarray, shape (size, num_heads, seq_len, seq_len)
    parts : ndarray, shape (size, 4, coordinates, coordinates, seq_len, seq_len)
        Shares of W^Q (or a tied matrix), W^K, W^V and W^O in Θ^{ii'}_{rr'}, axes i, i', r, r'.
    """

    scores: FloatArray
    parts: FloatArray

    @property
    def kernel(self) -> FloatArray:
        """Tangent kernel Θ, (size, coordinates, coordinates, seq_len, seq_len)."""
        return np.asarray(self.parts.sum(axis=1))


@dataclasses.dataclass(frozen=True, eq=False)
class Grams:
    """Gram matrices that determine the tangent kernel, for s positions, k output neurons and groups of g heads.

    Attributes
    ----------
    inputs : (size, s, s)
        X Xᵀ/n.
    scores : (size, H, s, s)
    keys, values : (size, kv_heads, s, s)
        K Kᵀ/ν, V Vᵀ/ν.
    queries : (size, kv_heads, g, g, s, s)
        Q_a Q_bᵀ/ν.
    outputs : (size, kv_heads, g, g, k, k)
        O_a,i · O_b,i'.
    projected : (size, H, k, s)
        u = V_a O_a,i.
    """

    inputs: FloatArray
    scores: FloatArray
    keys: FloatArray
    values: FloatArray
    queries: FloatArray
    outputs: FloatArray
    projected: FloatArray


def kernel_of(layer: AttentionLayer, grams: Grams, square: float) -> TangentDraws:
    """Return outputs, scores and parts of the tangent kernel from Gram matrices; `square` is f²ν."""
    size, _, k, s = grams.projected.shape
    groups, shared = layer.kv_heads, layer.group_size
    G = grams.inputs
    weights = attention_weights(layer, grams.scores)
    slopes = weight_slopes(layer, grams.scores[:, :, None], grams.projected)
    outputs = layer.head_factor * np.einsum("narj,nakj->nrk", weights, grams.projected, optimize=True)
    c = slopes.reshape(size, groups, shared, k, s, s)
    A = weights.reshape(size, groups, shared, s, s)
    parts = np.zeros((size, len(PARTS), k, k, s, s))
    if layer.tied_query_key:
        parts[:, 0] = layer.query_std**2 * square * _tied(G, grams.keys, c)
    else:
        by_keys = np.einsum("nbairl,nblm,nbajqm->nijrq", c, grams.keys, c, optimize=True)
        parts[:, 0] = layer.query_std**2 * square * G[:, None, None] * by_keys
        by_inputs = np.einsum("nbairl,nlm,nbejqm,nbaerq->nijrq", c, G, c, grams.queries, optimize=True)
        parts[:, 1] = layer.key_std**2 * square * by_inputs
    parts[:, 2] = value_part(layer, weights, G, grams.outputs)
    own = np.einsum("nbarj,nbjl,nbaql->nrq", A, grams.values, A, optimize=True)
    parts[:, 3] = layer.output_std**2 * np.eye(k)[:, :, None, None] * own[:, None, None]
    return TangentDraws(outputs, grams.scores, layer.head_factor**2 * parts)


def value_part(layer: AttentionLayer, weights: FloatArray, gram: FloatArray, outputs: FloatArray) -> FloatArray:
    """Return σ_V² Σ_ab (O_a,i · O_b,i') A_ar G A_br'ᵀ, (size, k, k, s, s); `outputs` as in `Grams`."""
    A = weights.reshape(len(weights), layer.kv_heads, layer.group_size, *weights.shape[2:])
    mixed = np.einsum("nbarj,njl,nbeql,nbaeik->nikrq", A, gram, A, outputs, optimize=True)
    return np.asarray(layer.value_std**2 * mixed)


def _tied(G: FloatArray, keys: FloatArray, c: FloatArray) -> FloatArray:
    """Return the part of the kernel that a tied W^Q = W^K contributes, without constant factors."""
    both = np.einsum("nbairl,nblm,nbajqm,nrq->nijrq", c, keys, c, G, optimize=True)
    both += np.einsum("nbairl,nbrq,nlm,nbajqm->nijrq", c, keys, G, c, optimize=True)
    crossed = np.einsum("nbairl,nblq,nrm,nbajqm->nijrq", c, keys, G, c, optimize=True)
    return np.asarray(both + crossed + crossed.swapaxes(1, 2).swapaxes(3, 4))


def draw_tangent_collapsed(
    layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator
) -> TangentDraws:
    """Draw the tangent kernel exactly in law, without weight matrices.

    Keys span r = rank G of a head's ν directions. Query components orthogonal to the keys enter through a Wishart
    matrix, as do components of rows of W^O orthogonal to the values.
    """
    inputs = draw_inputs(layer, size, rng)
    G = gram_of(inputs)
    root = input_root(inputs, G)
    heads = draw_heads(layer, size, root.shape[-1], rng)
    scores, keys, values = heads.of(layer, root)
    along = rng.standard_normal((size, layer.num_heads, values.shape[-1], coordinates))
    F, nu = root[:, None, None, None], layer.head_width
    apart = np.zeros((size, layer.kv_heads, *(1, 1) * 3))
    if not layer.tied_query_key:
        apart = F @ _gram_of_groups(layer, heads.scores, rng) @ F.swapaxes(-1, -2)
    return kernel_of(
        layer,
        Grams(
            inputs=G,
            scores=scores,
            keys=group_grams(layer, keys),
            values=group_grams(layer, values),
            queries=layer.query_std**2 / nu * apart,
            outputs=layer.output_std**2 / nu * _gram_of_groups(layer, along.swapaxes(-1, -2), rng),
            projected=layer.output_std * (values @ along).swapaxes(-1, -2),
        ),
        layer.score_factor**2,
    )


def _gram_of_groups(layer: AttentionLayer, along: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return each group's Gram matrix of vectors with ν normal entries, given the first m entries.

    `along` is (size, num_heads, r, m), the result (size, kv_heads, g, g, r, r).
    """
    size, _, r, m = along.shape
    rows = layer.group_size * r
    vectors = along.reshape(size, layer.kv_heads, rows, m)
    gram = vectors @ vectors.swapaxes(-1, -2)
    if layer.head_width > m:
        across = bartlett(rng, (size, layer.kv_heads), rows, layer.head_width - m)
        gram += across @ across.swapaxes(-1, -2)
    return np.asarray(gram.reshape(size, layer.kv_heads, layer.group_size, r, layer.group_size, r).swapaxes(3, 4))


def draw_tangent_direct(layer: AttentionLayer, size: int, coordinates: int, rng: np.random.Generator) -> TangentDraws:
    """Draw the tangent kernel from literal matrices."""
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
    """Return the tangent kernel of layers with given matrices, from their gradients entry by entry.

    Matrices are ω: `query` (size, num_heads, width, ν), `key` and `value` (size, kv_heads, width, ν), `output`
    (size, num_heads, ν, k).
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
    c = layer.head_factor * f * weight_slopes(layer, scores[:, :, None], projected)
    A = layer.head_factor * attention_weights(layer, scores)
    # ∂y_r^i/∂ω, (size, heads, i, r, entries).
    by_query = layer.query_std * to_head * np.einsum("nairl,nalm,nre->nairem", c, K, X, optimize=True)
    by_key = layer.key_std * to_head * np.einsum("nairl,narm,nle->nairem", c, Q, X, optimize=True)
    by_value = layer.value_std * to_head * np.einsum("narj,nje,nami->nairem", A, X, O, optimize=True)
    mixed = layer.output_std * from_head * np.einsum("narj,najm->narm", A, V, optimize=True)
    by_output = np.einsum("narm,ik->nairkm", mixed, np.eye(k))
    if layer.tied_query_key:
        by_query, by_key = by_query + by_key, np.zeros_like(by_key)
    of_groups = (len(X), layer.kv_heads, shared, k, s, n, nu)
    gradients = [
        by_query,
        by_key.reshape(of_groups).sum(axis=2),
        by_value.reshape(of_groups).sum(axis=2),
        by_output,
    ]
    parts = np.stack([np.einsum("nairem,najqem->nijrq", each, each, optimize=True) for each in gradients], axis=1)
    return TangentDraws(np.einsum("narj,naij->nri", A, projected, optimize=True), scores, parts)


def tangent_work(layer: AttentionLayer, method: str, coordinates: int) -> DrawPlan[TangentDraws]:
    """Return the plan to draw the kernel, or raise `InputError` for a layer part without a tangent kernel."""
    refuse_parts(layer, "tangent kernel")
    draw = {"direct": draw_tangent_direct, "collapsed": draw_tangent_collapsed}[method]
    s, heads, k = layer.seq_len, layer.num_heads, coordinates
    entries = kernel_entries(layer, k) + input_entries(layer)
    if method == "direct":
        entries += heads * layer.width * layer.head_width * (8 * k * s + 8) + 4 * heads * s * layer.head_width
    return DrawPlan(draw, layer, coordinates, entries)


def kernel_entries(layer: AttentionLayer, coordinates: int) -> int:
    """Return a bound on the entries of a draw's kernel and of the kernel's arguments."""
    s, heads, k, shared = layer.seq_len, layer.num_heads, coordinates, layer.group_size
    return 12 * k * k * s * s * shared**2 + 8 * heads * k * s * s + heads * shared * (6 * s * s + 4 * k * k)
