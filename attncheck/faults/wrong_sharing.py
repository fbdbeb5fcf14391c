"""Simulators in which heads share a matrix with each other or with their output."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Literal as OneOf

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.faults.fault import Fault, declared
from attncheck.faults.literal import LiteralSimulator, Projections, independent, summed_over_heads
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirements import MANY_POSITIONS, NARROW_HEADS, SEVERAL_HEADS, SMALL_HEADS, UNTIED
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.linalg import gram_of, gram_root

Which = OneOf["queries", "keys", "values"]


def _tied(which: Which, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Use the transpose of another matrix of each head as its W_O.

    Rows of a matrix are its images of unit vectors; drawing these jointly with the inputs' images needs no n × n array.
    """
    inputs = draw_inputs(layer, size, rng)
    made, coordinates = independent(layer, inputs, rng), min(layer.width, 2)
    units = np.broadcast_to(layer.width**0.5 * np.eye(coordinates, layer.width), (size, coordinates, layer.width))
    root = gram_root(gram_of(np.concatenate([inputs, units], axis=1)))[:, None]
    matrices, group = (layer.num_heads, 1) if which == "queries" else (layer.kv_heads, layer.group_size)
    images = np.repeat(root @ rng.standard_normal((size, matrices, root.shape[-1], layer.head_width)), group, axis=1)
    std = {"queries": layer.query_std, "keys": layer.key_std, "values": layer.value_std}[which]
    rows = images[:, :, layer.seq_len :].swapaxes(-1, -2)

    def finish(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator) -> FloatArray:
        return summed_over_heads(layer, mixed @ rows)

    tied = dataclasses.replace(made, **{which: std * images[:, :, : layer.seq_len]})
    return LiteralSimulator(finish=finish).after(layer, tied, rng)


FAULTS: list[Fault] = []


@declared(FAULTS, "the first and the last head share one W_Q", SEVERAL_HEADS & UNTIED & MANY_POSITIONS, "project")
def _twin_queries(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Give the last head the W_Q of the first."""
    made = independent(layer, inputs, rng)
    queries = made.queries.copy()
    queries[:, -1] = queries[:, 0]
    return dataclasses.replace(made, queries=queries)


FAULTS += [
    Fault("tied_query_output", "W_O is W_Q of its head, transposed", NARROW_HEADS & UNTIED, partial(_tied, "queries")),
    Fault("tied_key_output", "W_O is W_K of its head, transposed", NARROW_HEADS, partial(_tied, "keys")),
    Fault("tied_value_output", "W_O is W_V of its head, transposed", SMALL_HEADS, partial(_tied, "values")),
]
