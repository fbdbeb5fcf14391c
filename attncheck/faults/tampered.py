"""Faults made by tampering with the draws of a correct simulator.

Each is a subject, e.g. ``attncheck.check("attncheck.faults.tampered:residual_added", layer)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray, IntArray
from attncheck.checks.answers import projected
from attncheck.faults.fault import Drawn, Fault, corrupted, declared
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.requirements import SEVERAL_HEADS
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.literal import LiteralSimulator, Projections, by_matrices, independent
from attncheck.subject import collapsed


def _subset(drawn: Drawn, index: IntArray) -> Drawn:
    return {name: array[index] for name, array in drawn.items()}


def _sized(values: FloatArray, by: FloatArray) -> FloatArray:
    """Multiply the `values` of each draw by the length of `by` in this draw, divided by a typical length.

    The length of an array in a draw is the root of its sum of squares; the typical length is the root mean square of
    the lengths of all draws.
    """
    squares = _energy(by)
    factor = np.sqrt(squares / squares.mean())
    return np.asarray(values * factor.reshape(-1, *[1] * (values.ndim - 1)))


def _energy(values: FloatArray) -> FloatArray:
    """Return the sum of squares of each draw."""
    return np.asarray((values**2).sum(axis=tuple(range(1, values.ndim))))


_FAULTS: list[Fault] = []


@corrupted(_FAULTS, "the draws of a call are sorted by the sign of their outputs")
def _by_sign(drawn: Drawn) -> Drawn:
    return _subset(drawn, np.argsort(drawn["outputs"].sum(axis=(1, 2)) > 0))


@corrupted(_FAULTS, "the draws of a call are sorted by the size of their outputs")
def _by_size(drawn: Drawn) -> Drawn:
    return _subset(drawn, np.argsort(_energy(drawn["outputs"])))


@declared(_FAULTS, "every second draw uses the matrices of the draw before it")
def _stale_weights(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    draw = np.arange(size) // 2
    projections = by_matrices(
        layer, draw_inputs(layer, size, rng), lambda shape: rng.standard_normal((size // 2 + 1, *shape))[draw]
    )
    return LiteralSimulator().after(layer, projections, rng)


@declared(_FAULTS, "inputs, queries, keys and values of a call's first half are repeated in its second half")
def _halves_alike(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    inputs = draw_inputs(layer, -(-size // 2), rng)
    projections = independent(layer, inputs, rng)
    arrays = (projections.inputs, projections.queries, projections.keys, projections.values)
    return LiteralSimulator().after(
        layer, Projections(*(np.concatenate([array, array])[:size] for array in arrays)), rng
    )


@declared(_FAULTS, "the inputs of a call's first third are repeated in the other two, with new matrices")
def _inputs_again(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    inputs = draw_inputs(layer, -(-size // 3), rng)
    projections = independent(layer, np.concatenate([inputs, inputs, inputs])[:size], rng)
    return LiteralSimulator().after(layer, projections, rng)


@corrupted(_FAULTS, "the inputs are exposed with the last position first")
def _inputs_turned(drawn: Drawn) -> Drawn:
    return {"inputs": drawn["inputs"][:, ::-1]}


@corrupted(_FAULTS, "the last fiftieth of the draws of a call is 0 in all arrays")
def _unfilled(drawn: Drawn) -> Drawn:
    size = len(drawn["outputs"])
    for array in drawn.values():
        array[size - size // 50 :] = 0.0
    return drawn


@corrupted(_FAULTS, "one neuron of the inputs appears twice")
def _neuron_twice(drawn: Drawn) -> Drawn:
    return {"inputs": np.repeat(drawn["inputs"][..., :1], 2, axis=-1)}


@declared(_FAULTS, "one random scale multiplies all outputs of a call")
def _scale_per_call(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    scale = np.exp(rng.standard_normal())
    drawn = collapsed(layer, size, rng)
    return {**drawn, "outputs": scale * drawn["outputs"]}


@declared(_FAULTS, "W_K, W_V and W_O are drawn from a generator that is seeded anew in each call")
def _reseeded(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Drawn:
    anew = np.random.default_rng(0)
    queries = projected(layer, inputs, rng).queries
    projections = dataclasses.replace(projected(layer, inputs, anew), queries=queries)
    drawn = LiteralSimulator().after(layer, projections, anew)
    return {name: drawn[name] for name in ("outputs", "scores")}


@corrupted(_FAULTS, "the outputs are rounded to float16")
def _half_precision_outputs(drawn: Drawn) -> Drawn:
    return {"outputs": drawn["outputs"].astype(np.float16).astype(np.float64)}


@corrupted(_FAULTS, "the scores of a call fall from a tenth too large to a tenth too small")
def _fading_scores(drawn: Drawn) -> Drawn:
    fading = np.linspace(1.1, 0.9, len(drawn["scores"]))
    return {"scores": fading[:, None, None, None] * drawn["scores"]}


@declared(_FAULTS, "queries, keys and values of the first head, or its group, are a tenth too large", SEVERAL_HEADS)
def _one_head_larger(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Drawn:
    projections = independent(layer, draw_inputs(layer, size, rng), rng)
    projections.queries[:, 0] *= 1.1
    for shared in (projections.keys, projections.values):
        shared[:, : layer.group_size] *= 1.1
    return LiteralSimulator().after(layer, projections, rng)


@corrupted(_FAULTS, "the inputs are added to the outputs, as a residual stream would be")
def _residual_added(drawn: Drawn) -> Drawn:
    return {"outputs": drawn["outputs"] + drawn["inputs"]}


@corrupted(_FAULTS, "the first position's output is added to the last one's")
def _first_position_added(drawn: Drawn) -> Drawn:
    drawn["outputs"][:, -1] += drawn["outputs"][:, 0]
    return drawn


@corrupted(_FAULTS, "half of the first head's last row of scores is added to the outputs")
def _scores_added(drawn: Drawn) -> Drawn:
    return {"outputs": drawn["outputs"] + 0.5 * drawn["scores"][:, 0, -1, :, None]}


@corrupted(_FAULTS, "the first neuron of an input is added to its scores")
def _input_bias(drawn: Drawn) -> Drawn:
    return {"scores": drawn["scores"] + drawn["inputs"][:, None, :, :1]}


@corrupted(_FAULTS, "the outputs of a draw are multiplied by the size of its scores, relative to other draws")
def _outputs_sized_by_scores(drawn: Drawn) -> Drawn:
    return {"outputs": _sized(drawn["outputs"], drawn["scores"])}


@corrupted(_FAULTS, "the outputs of a draw are multiplied by the size of its inputs, relative to other draws")
def _outputs_sized_by_inputs(drawn: Drawn) -> Drawn:
    return {"outputs": _sized(drawn["outputs"], drawn["inputs"])}


@corrupted(_FAULTS, "the scores of a draw are multiplied by the size of its inputs, relative to other draws")
def _scores_sized_by_inputs(drawn: Drawn) -> Drawn:
    return {"scores": _sized(drawn["scores"], drawn["inputs"])}


#: Faults by name.
CORRUPTIONS: Mapping[str, Fault] = {fault.name: fault for fault in _FAULTS}


def __getattr__(name: str) -> Any:
    if name not in CORRUPTIONS:
        raise AttributeError(f"module 'attncheck.faults.tampered' has no attribute {name!r}")
    return CORRUPTIONS[name].subject
