"""Common mistakes in attention layers, as candidate causes in addition to the named faults."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.faults.fault import Drawn, Fault, corrupted, declared
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised
from attncheck.layers.parts.rotary import rotated, rotated_by
from attncheck.layers.parts.scores import of_head
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import (
    CAUSAL,
    CORRELATED_POSITIONS,
    SEVERAL_GROUPS,
    SEVERAL_HEADS,
    SEVERAL_POSITIONS,
    SHARED_GROUPS,
    SOFTMAX,
    UNTIED,
    OfLayer,
)
from attncheck.simulators.collapsed import draw_hidden, draw_positions
from attncheck.simulators.linalg import gram_of, gram_root
from attncheck.simulators.literal import LiteralSimulator, Projections, dot_products, independent, project_out

Rng = np.random.Generator

# Default rotary base.
_BASE = 10_000.0
_DIVIDED = OfLayer(
    "inputs with a slice for each head",
    lambda layer: layer.num_heads > 1 and layer.num_kv_heads is None and layer.width % layer.num_heads == 0,
    "the inputs cannot be cut into a slice for each head",
)
_ROTARY = (
    OfLayer("rotary positions", lambda layer: layer.rotary_base is not None, "the layer declares no rotary positions")
    & CORRELATED_POSITIONS
)
_WITHOUT_ROTARY = (
    OfLayer("no rotary positions", lambda layer: layer.rotary_base is None, "the layer declares rotary positions")
    & OfLayer("an even head_dim", lambda layer: layer.head_width % 2 == 0, "head_dim is odd")
    & UNTIED
    & CORRELATED_POSITIONS
)
_CAPPED = CAUSAL & OfLayer("a soft cap", lambda layer: layer.softcap is not None, "the layer declares no soft cap")
# Score of masked positions in place of −∞, for attention maps that need finite scores.
_MASKED = -1e9
_MIXED = SEVERAL_HEADS & SEVERAL_POSITIONS

#: One simulator per mistake.
MISTAKES: list[Fault] = []


def _sharing(*names: str) -> LiteralSimulator:
    """Return a simulator in which all heads use the projections of the first head.

    `names` says which projections: queries, keys or values.
    """

    def arrange(layer: AttentionLayer, vectors: Projections) -> Projections:
        first: dict[str, Any] = {
            name: np.repeat(getattr(vectors, name)[:, :1], layer.num_heads, axis=1) for name in names
        }
        return dataclasses.replace(vectors, **first)

    return LiteralSimulator(arrange=arrange)


MISTAKES += [
    Fault("one_query_matrix", "all heads share one W_Q", SEVERAL_HEADS, _sharing("queries")),
    Fault("one_value_matrix", "all heads share one W_V", SEVERAL_GROUPS, _sharing("values")),
    Fault("one_query_key", "all heads share W_Q and W_K", SEVERAL_HEADS, _sharing("queries", "keys")),
    Fault(
        "same_heads",
        "all heads are the same: they share W_Q, W_K and W_V",
        SEVERAL_HEADS,
        _sharing("queries", "keys", "values"),
    ),
]


@declared(MISTAKES, "all heads share one W_O", SEVERAL_HEADS, step="finish")
def _one_output_matrix(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    total = mixed.sum(axis=1, keepdims=True)
    return project_out(of_head(layer, 0), total, coordinates, rng) * layer.head_factor


@declared(MISTAKES, "each position has its own W_O", SEVERAL_POSITIONS, step="finish")
def _output_matrix_by_position(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    parts = [project_out(layer, mixed[:, :, i : i + 1], coordinates, rng) for i in range(layer.seq_len)]
    return np.concatenate(parts, axis=1)


@declared(MISTAKES, "scores are transposed: keys times queries", SHARED_GROUPS, step="score")
def _transposed_scores(layer: AttentionLayer, projections: Projections, rng: Rng) -> FloatArray:
    return dot_products(layer, projections, rng).swapaxes(-1, -2)


@declared(MISTAKES, "heads are split by a view without a transpose: positions and heads are mixed", _MIXED, "arrange")
def _split_by_view(layer: AttentionLayer, projections: Projections) -> Projections:
    def viewed(vectors: FloatArray) -> FloatArray:
        return vectors.swapaxes(1, 2).reshape(vectors.shape)

    arrays = projections.queries, projections.keys, projections.values
    return Projections(projections.inputs, *map(viewed, arrays))


@declared(MISTAKES, "heads are merged by a view without a transpose: outputs mix positions", _MIXED, step="finish")
def _merged_by_view(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    viewed = mixed.reshape(len(mixed), layer.seq_len, layer.num_heads, layer.head_width).swapaxes(1, 2)
    return project_out(layer, viewed, coordinates, rng)


def _sliced(shared: bool) -> LiteralSimulator:
    """Return a simulator in which each head projects its own slice of the neurons of the inputs.

    `shared` tells whether all heads use the same matrices.
    """

    def project(layer: AttentionLayer, inputs: FloatArray, rng: Rng) -> Projections:
        if _DIVIDED.reason(layer):
            return independent(layer, inputs, rng)
        heads, entries = layer.num_heads, layer.width // layer.num_heads
        slices = inputs.reshape(*inputs.shape[:2], heads, entries).swapaxes(1, 2)

        def projection(std: float) -> FloatArray:
            matrices = rng.standard_normal((len(inputs), 1 if shared else heads, entries, layer.head_width))
            return np.asarray(std * entries**-0.5 * slices @ matrices)

        return Projections(inputs, projection(layer.query_std), projection(layer.key_std), projection(layer.value_std))

    return LiteralSimulator(project=project)


MISTAKES += [
    Fault(
        "split_and_merged_by_view",
        "heads are split and merged by a view without a transpose: a head mixes positions",
        _MIXED,
        LiteralSimulator(arrange=_split_by_view, finish=_merged_by_view),
    ),
    Fault("sliced_heads", "each head projects a slice of the inputs only", _DIVIDED, _sliced(shared=False)),
    Fault(
        "one_sliced_head",
        "each head projects a slice of the inputs, all with the same W_Q, W_K and W_V",
        _DIVIDED,
        _sliced(shared=True),
    ),
]


@declared(
    MISTAKES, "the inputs are plain normals: they lack the random length of h, which all W h share", step="project"
)
def _inputs_of_constant_length(layer: AttentionLayer, inputs: FloatArray, rng: Rng) -> Projections:
    normals, _ = draw_hidden(layer, len(inputs), rng)
    hidden = layer.input_std * normals + draw_positions(layer, len(inputs), rng)
    return independent(layer, normalised(layer.norm, layer.phi(hidden)), rng)


@declared(MISTAKES, "values pass through relu", step="arrange")
def _activated_values(layer: AttentionLayer, vectors: Projections) -> Projections:
    return dataclasses.replace(vectors, values=np.maximum(vectors.values, 0.0))


@declared(MISTAKES, "queries, keys and values pass through relu", step="arrange")
def _activated_projections(layer: AttentionLayer, vectors: Projections) -> Projections:
    return Projections(
        vectors.inputs, *(np.maximum(array, 0.0) for array in (vectors.queries, vectors.keys, vectors.values))
    )


@declared(
    MISTAKES, "the first position's keys and values are used for all positions", SEVERAL_POSITIONS, step="arrange"
)
def _first_position_only(layer: AttentionLayer, vectors: Projections) -> Projections:
    """Use the first position's keys and values for all positions."""
    s = layer.seq_len
    first: dict[str, Any] = {
        name: np.repeat(getattr(vectors, name)[:, :, :1], s, axis=2) for name in ("keys", "values")
    }
    return dataclasses.replace(vectors, **first)


@declared(MISTAKES, "softmax normalises over heads and keys together", SOFTMAX & SEVERAL_HEADS, step="weigh")
def _softmax_over_all(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    joint = np.where(layer.visible, scores, -np.inf)
    weights = np.exp(joint - joint.max(axis=(1, 3), keepdims=True))
    return np.asarray(weights / weights.sum(axis=(1, 3), keepdims=True))


@declared(MISTAKES, "softmax normalises over heads instead of keys", SOFTMAX & SEVERAL_HEADS, step="weigh")
def _softmax_over_heads(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(np.where(layer.visible, weights / weights.sum(axis=1, keepdims=True), 0.0))


@declared(MISTAKES, "all heads use the attention weights of head 0", SEVERAL_HEADS, step="weigh")
def _first_weights(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return np.repeat(layer.attention_weights(scores)[:, :1], layer.num_heads, axis=1)


def _all_visible(layer: AttentionLayer) -> BoolArray:
    return np.ones((layer.seq_len, layer.seq_len), dtype=bool)


@declared(MISTAKES, "the mask is inverted: a position sees itself and the later ones", SEVERAL_POSITIONS, step="weigh")
def _inverted_mask(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.map.weights(scores, np.triu(_all_visible(layer)))


def _later_only(rest: float) -> LiteralSimulator:
    """Return a simulator in which each position attends to later positions only.

    The last position attends to all positions equally, with weights that add up to `rest`.
    """

    def weigh(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        if layer.mask == "none":
            return layer.attention_weights(scores)
        weights = np.full(scores.shape, rest / layer.seq_len)
        weights[:, :, :-1] = layer.map.weights(scores[:, :, :-1], ~layer.visible[:-1])
        return weights

    return LiteralSimulator(weigh=weigh)


MISTAKES += [
    Fault(
        "later_only",
        "the mask is inverted: each position sees only later ones, and the last sees none",
        CAUSAL,
        _later_only(rest=0.0),
    ),
    Fault(
        "later_only_or_all",
        "the mask is inverted: each position sees only later ones, and the last sees all equally",
        SOFTMAX & CAUSAL,
        _later_only(rest=1.0),
    ),
]


@declared(MISTAKES, "the mask hides a position from itself", SEVERAL_POSITIONS, step="weigh")
def _strict_mask(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    """Hide each position from itself, except the first."""
    mask = np.tril(_all_visible(layer), k=-1)
    mask[0, 0] = True
    return layer.map.weights(scores, mask)


@declared(MISTAKES, "each position attends to itself only", SEVERAL_POSITIONS, step="weigh")
def _own_position_only(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.map.weights(scores, np.eye(layer.seq_len, dtype=bool))


@declared(MISTAKES, "masked scores are 0 instead of −∞: later positions are seen", CAUSAL, step="weigh")
def _masked_with_zero(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.map.weights(np.where(layer.visible, scores, 0.0), _all_visible(layer))


@declared(
    MISTAKES, "a mask of booleans is added to the scores: later positions are seen", SOFTMAX & CAUSAL, step="weigh"
)
def _mask_as_bias(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.map.weights(scores + layer.visible, _all_visible(layer))


@declared(MISTAKES, "values are weighted by the transpose of the attention weights", SEVERAL_POSITIONS, step="weigh")
def _transposed_weights(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.attention_weights(scores).swapaxes(-1, -2)


@declared(
    MISTAKES,
    "the mask is applied after softmax: rows of the attention do not sum to 1",
    SOFTMAX & CAUSAL,
    step="weigh",
)
def _masked_after_softmax(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return np.where(layer.visible, layer.map.weights(scores, _all_visible(layer)), 0.0)


def _unscaled(layer: AttentionLayer, projections: Projections, rng: Rng) -> FloatArray:
    return np.asarray(dot_products(layer, projections, rng) / (layer.score_factor * layer.head_width**-0.5))


@declared(MISTAKES, "the soft cap is applied after the mask: all positions are seen", _CAPPED, step="weigh")
def _capped_after_mask(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    mask = layer.visible if layer.softcap is None else _all_visible(layer)
    return layer.map.weights(np.where(layer.visible, scores, _MASKED), mask)


@declared(
    MISTAKES, "softmax is not normalised: exp of the scores is divided by the number of positions", SOFTMAX, "weigh"
)
def _unnormalised_softmax(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return np.where(layer.visible, np.exp(scores), 0.0) / layer.seq_len


@declared(MISTAKES, "softmax has an extra 1 in its denominator, after the maximum is subtracted", SOFTMAX, "weigh")
def _one_after_maximum(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    visible = np.where(layer.visible, scores, -np.inf)
    weights = np.exp(visible - visible.max(axis=-1, keepdims=True))
    return np.asarray(weights / (1.0 + weights.sum(axis=-1, keepdims=True)))


@declared(MISTAKES, "softmax is applied twice", SOFTMAX, step="weigh")
def _second_softmax(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.attention_weights(layer.attention_weights(scores))


@declared(MISTAKES, "softmax is applied twice, the second time to all positions", SOFTMAX & CAUSAL, step="weigh")
def _second_softmax_over_all(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.map.weights(layer.attention_weights(scores), _all_visible(layer))


def _neighbours(what: str, axis: int, step: int) -> Fault:
    simulator = LiteralSimulator(weigh=lambda layer, scores: np.roll(layer.attention_weights(scores), step, axis))
    text = f"{what} of a neighbouring position are used, cyclically"
    return Fault(f"{what}_{step}", text, SEVERAL_POSITIONS, simulator)


MISTAKES += [_neighbours(what, axis, step) for what, axis in (("values", -1), ("outputs", -2)) for step in (1, -1)]


@declared(MISTAKES, "the scale of the scores is applied after softmax", SOFTMAX, step="weigh", score=_unscaled)
def _scaled_after_softmax(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return np.asarray(layer.attention_weights(scores) * layer.score_factor * layer.head_width**-0.5)


def _dropout(share: float) -> Fault:
    def draw(layer: AttentionLayer, size: int, rng: Rng) -> dict[str, FloatArray]:
        def weigh(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
            retained = rng.random(scores.shape) >= share
            return layer.attention_weights(scores) * retained / (1.0 - share)

        return LiteralSimulator(weigh=weigh)(layer, size, rng)

    return Fault(f"dropout_{share:g}", f"dropout of {share:.0%} of the attention weights is left on", ANY, draw)


MISTAKES += map(_dropout, (0.1, 0.2, 0.5))


@declared(MISTAKES, "W_O is missing: each output is one neuron of one head", step="finish")
def _no_output_matrix(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    neurons = [(c // layer.head_width % layer.num_heads, c % layer.head_width) for c in range(coordinates)]
    return np.stack([mixed[:, head, :, neuron] for head, neuron in neurons], axis=-1)


@declared(MISTAKES, "W_O is missing: heads are added up", step="finish")
def _added_heads(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    neurons = [c % layer.head_width for c in range(coordinates)]
    return np.asarray(layer.head_factor * mixed.sum(axis=1)[:, :, neurons])


@declared(MISTAKES, "a bias shared by all positions is added to the outputs", step="finish")
def _output_bias(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    limit = (layer.num_heads * layer.head_width) ** -0.5
    bias = rng.uniform(-limit, limit, (len(mixed), 1, coordinates))
    return project_out(layer, mixed, coordinates, rng) + bias


@corrupted(MISTAKES, "the inputs are added to the outputs, as by a residual connection")
def _residual(drawn: Drawn) -> Drawn:
    return {"outputs": drawn["outputs"] + drawn["inputs"]}


@corrupted(MISTAKES, "the scores are returned transposed", SEVERAL_POSITIONS)
def _returned_transposed(drawn: Drawn) -> Drawn:
    return {"scores": drawn["scores"].swapaxes(-1, -2)}


@corrupted(MISTAKES, "the outputs belong to other draws than the other arrays")
def _outputs_of_other_draws(drawn: Drawn) -> Drawn:
    return {"outputs": np.roll(drawn["outputs"], 1, axis=0)}


@declared(MISTAKES, "one matrix of independent entries is drawn in place of W_Q W_Kᵀ", UNTIED)
def _one_score_matrix(layer: AttentionLayer, size: int, rng: Rng) -> Drawn:
    """Draw scores with the law of X M Xᵀ for Gaussian matrices M.

    The matrices themselves are not drawn, because they may not fit into memory for all draws.
    """

    def score(layer: AttentionLayer, vectors: Projections, rng: Rng) -> FloatArray:
        root = gram_root(gram_of(vectors.inputs))[:, None]
        normals = rng.standard_normal((len(root), layer.num_heads, layer.seq_len, layer.seq_len))
        scale = layer.score_factor * layer.query_std * layer.key_std
        return np.asarray(scale * (root @ normals @ root.swapaxes(-1, -2)))

    return LiteralSimulator(score=score)(layer, size, rng)


@declared(MISTAKES, f"undeclared rotary positions are applied (rotary_base={_BASE:g})", _WITHOUT_ROTARY, step="score")
def _undeclared_rotary(layer: AttentionLayer, projections: Projections, rng: Rng) -> FloatArray:
    read = layer if _WITHOUT_ROTARY.reason(layer) else layer.replace(rotary_base=_BASE, head_dim=layer.head_width)
    return dot_products(read, projections, rng)


@declared(MISTAKES, "declared rotary positions are not applied", _ROTARY, step="score")
def _rotary_left_out(layer: AttentionLayer, projections: Projections, rng: Rng) -> FloatArray:
    return dot_products(layer.replace(rotary_base=None), projections, rng)


@declared(MISTAKES, "rotary positions turn only the keys, not the queries", _ROTARY, step="score")
def _rotary_of_keys(layer: AttentionLayer, projections: Projections, rng: Rng) -> FloatArray:
    return _rotary_left_out(layer, dataclasses.replace(projections, keys=rotated(layer, projections.keys)), rng)


@declared(MISTAKES, "rotary positions turn queries and keys in opposite directions", _ROTARY, step="score")
def _rotary_against(layer: AttentionLayer, vectors: Projections, rng: Rng) -> FloatArray:
    if layer.rotary_base is None:
        return dot_products(layer, vectors, rng)
    back = rotated_by(layer, vectors.queries, -np.arange(layer.seq_len))
    return _rotary_left_out(layer, dataclasses.replace(vectors, queries=back, keys=rotated(layer, vectors.keys)), rng)
