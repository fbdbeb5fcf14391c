"""Simulators that share, multiply or normalise the wrong arrays."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Literal as OneOf

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.faults.fault import Fault, declared
from attncheck.layers import requirements as need
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators import literal
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.linalg import gram_of, gram_root
from attncheck.simulators.literal import Projections, independent

Which = OneOf["queries", "keys", "values"]


def _one_output_matrix(
    layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator
) -> FloatArray:
    matrices = rng.standard_normal((layer.num_heads, layer.head_width, coordinates))
    return literal.summed_over_heads(layer, mixed @ matrices)


FAULTS: list[Fault] = []


@declared(FAULTS, "W_Q and W_K are the same matrix", need.UNTIED, step="arrange")
def _tied_query_key(layer: AttentionLayer, projections: Projections) -> Projections:
    return dataclasses.replace(projections, queries=projections.keys * (layer.query_std / layer.key_std))


@declared(FAULTS, "W_V and W_K are the same matrix", step="arrange")
def _tied_key_value(layer: AttentionLayer, projections: Projections) -> Projections:
    return dataclasses.replace(projections, values=projections.keys * (layer.value_std / layer.key_std))


@declared(FAULTS, "W_V and W_Q are the same matrix", step="arrange")
def _tied_query_value(layer: AttentionLayer, projections: Projections) -> Projections:
    """Use the W_Q of the first head of each group of heads as the W_V of the group."""
    queries = np.repeat(projections.queries[:, :: layer.group_size], layer.group_size, axis=1)
    return dataclasses.replace(projections, values=queries * (layer.value_std / layer.query_std))


@declared(
    FAULTS,
    "the first W_V is the last W_K, cut from a packed matrix one slice too early",
    need.SEVERAL_GROUPS,
    step="arrange",
)
def _slipped_slice(layer: AttentionLayer, projections: Projections) -> Projections:
    """Replace the values of the first group of heads by the keys of the last group."""
    values = projections.values.copy()
    values[:, : layer.group_size] = projections.keys[:, -layer.group_size :] * (layer.value_std / layer.key_std)
    return dataclasses.replace(projections, values=values)


@declared(
    FAULTS, "all heads share one W_K although each group should have its own", need.SEVERAL_GROUPS, step="arrange"
)
def _shared_keys(layer: AttentionLayer, projections: Projections) -> Projections:
    return dataclasses.replace(projections, keys=np.repeat(projections.keys[:, :1], layer.num_heads, axis=1))


@declared(
    FAULTS,
    "groups are interleaved: heads take keys and values of the wrong group",
    need.SHARED_GROUPS & need.SEVERAL_GROUPS,
    step="arrange",
)
def _interleaved_groups(layer: AttentionLayer, projections: Projections) -> Projections:
    """Let head a use the keys and values of the group with index a mod g, where g is the number of groups."""
    order = (np.arange(layer.num_heads) % layer.kv_heads) * layer.group_size
    return dataclasses.replace(projections, keys=projections.keys[:, order], values=projections.values[:, order])


@declared(
    FAULTS, "all draws of a call share their weights", need.SMALL_HEADS, step="project", finish=_one_output_matrix
)
def _weights_per_call(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Use the same matrices for all draws of a call."""
    return literal.by_matrices(layer, inputs, rng.standard_normal)


@declared(
    FAULTS,
    "the variance of W_O falls from 1.5 times the declared one in the first head to 0.5 times in the last",
    need.SEVERAL_HEADS,
    step="finish",
)
def _uneven_heads(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
    variances = np.linspace(1.5, 0.5, layer.num_heads)
    return literal.project_out(layer, mixed * variances[:, None, None] ** 0.5, coordinates, rng)


@declared(FAULTS, "scores and values use separately drawn inputs", step="project")
def _inputs_apart(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Draw separate inputs for scores and for values.

    The returned inputs are those from which the values are computed.
    """
    projections = independent(layer, inputs, rng)
    fresh = independent(layer, draw_inputs(layer, len(inputs), rng), rng)
    return dataclasses.replace(projections, queries=fresh.queries, keys=fresh.keys)


@declared(
    FAULTS,
    "scores are drawn independently although a shared query or key correlates them",
    need.CORRELATED_POSITIONS,
    step="score",
)
def _independent_scores(layer: AttentionLayer, projections: Projections, rng: np.random.Generator) -> FloatArray:
    """Draw scores independently of each other.

    The variance of each score is right, given its key and the input from which its query is computed.
    """
    queries = layer.query_std * (projections.inputs**2).mean(axis=-1)[:, None, :, None] ** 0.5
    keys = (projections.keys**2).mean(axis=-1)[:, :, None, :] ** 0.5
    spread = layer.score_factor * queries * keys
    return np.asarray(spread * rng.standard_normal(spread.shape))


@declared(FAULTS, "the scores are rounded to float16", step="score")
def _half_precision_scores(layer: AttentionLayer, projections: Projections, rng: np.random.Generator) -> FloatArray:
    return literal.dot_products(layer, projections, rng).astype(np.float16).astype(np.float64)


@declared(FAULTS, "softmax normalises the columns of the scores", need.SOFTMAX & need.SEVERAL_POSITIONS, step="weigh")
def _softmax_over_columns(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.map.weights(scores.swapaxes(-1, -2), layer.visible.T).swapaxes(-1, -2)


@declared(FAULTS, "the causal mask lets every position see the next one", need.CAUSAL, step="weigh")
def _leaking_mask(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    if layer.mask == "none":
        return layer.attention_weights(scores)
    return layer.map.weights(scores, layer.visible | np.eye(layer.seq_len, k=1, dtype=bool))


@declared(FAULTS, "the last head is left out of the sum", need.SEVERAL_HEADS, step="weigh")
def _dropped_head(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    weights = layer.attention_weights(scores)
    weights[:, -1] = 0.0
    return weights


@declared(FAULTS, "0.02 is added to all outputs", step="finish")
def _shifted_outputs(
    layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator
) -> FloatArray:
    return literal.project_out(layer, mixed, coordinates, rng) + 0.02


@declared(
    FAULTS,
    "the first and the last head share one W_Q",
    need.SEVERAL_HEADS & need.UNTIED & need.MANY_POSITIONS,
    "arrange",
)
def _twin_queries(layer: AttentionLayer, projections: Projections) -> Projections:
    """Give the last head the W_Q of the first."""
    queries = projections.queries.copy()
    queries[:, -1] = queries[:, 0]
    return dataclasses.replace(projections, queries=queries)


def _tied(which: Which, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Use the transposed query, key or value matrix of each head as the head's W_O.

    The first rows of a matrix are the products of unit vectors with it. They are drawn jointly with the products of
    the inputs, so that no n × n array is needed.
    """
    inputs = draw_inputs(layer, size, rng)
    projections, coordinates = independent(layer, inputs, rng), min(layer.width, 2)
    units = np.broadcast_to(layer.width**0.5 * np.eye(coordinates, layer.width), (size, coordinates, layer.width))
    root = gram_root(gram_of(np.concatenate([inputs, units], axis=1)))[:, None]
    matrices, group = (layer.num_heads, 1) if which == "queries" else (layer.kv_heads, layer.group_size)
    images = np.repeat(root @ rng.standard_normal((size, matrices, root.shape[-1], layer.head_width)), group, axis=1)
    std = {"queries": layer.query_std, "keys": layer.key_std, "values": layer.value_std}[which]
    rows = images[:, :, layer.seq_len :].swapaxes(-1, -2)

    def finish(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
        return literal.summed_over_heads(layer, mixed @ rows)

    tied = dataclasses.replace(projections, **{which: std * images[:, :, : layer.seq_len]})
    return literal.LiteralSimulator(finish=finish).after(layer, tied, rng)


FAULTS += [
    Fault(
        "tied_query_output",
        "W_O is W_Q of its head, transposed",
        need.NARROW_HEADS & need.UNTIED,
        partial(_tied, "queries"),
    ),
    Fault("tied_key_output", "W_O is W_K of its head, transposed", need.NARROW_HEADS, partial(_tied, "keys")),
    Fault("tied_value_output", "W_O is W_V of its head, transposed", need.SMALL_HEADS, partial(_tied, "values")),
]
