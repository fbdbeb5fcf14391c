"""Undeclared, missing, one-sided or reversed rotary positions."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from attncheck.faults.fault import Fault
from attncheck.faults.literal import LiteralSimulator, Projections, dot_products
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts.rotary import turned, turned_by
from attncheck.layers.requirements import CORRELATED_POSITIONS, UNTIED, OfLayer

FloatArray = NDArray[np.float64]
Rng = np.random.Generator

# Default rotary base.
_BASE = 10_000.0

_ROTARY = OfLayer(
    "rotary positions", lambda layer: layer.rotary_base is not None, "the layer declares no rotary positions"
)
_UNDECLARED = (
    OfLayer("no rotary positions", lambda layer: layer.rotary_base is None, "the layer declares rotary positions")
    & OfLayer("an even head_dim", lambda layer: layer.head_width % 2 == 0, "neurons of a head make no pairs")
    & UNTIED
    & CORRELATED_POSITIONS
)


def _applied(layer: AttentionLayer, made: Projections, rng: Rng) -> FloatArray:
    read = layer if _UNDECLARED.reason(layer) else layer.replace(rotary_base=_BASE, head_dim=layer.head_width)
    return dot_products(read, made, rng)


def _left_out(layer: AttentionLayer, made: Projections, rng: Rng) -> FloatArray:
    return dot_products(layer.replace(rotary_base=None), made, rng)


def _keys_alone(layer: AttentionLayer, made: Projections, rng: Rng) -> FloatArray:
    return _left_out(layer, dataclasses.replace(made, keys=turned(layer, made.keys)), rng)


def _against(layer: AttentionLayer, made: Projections, rng: Rng) -> FloatArray:
    if layer.rotary_base is None:
        return dot_products(layer, made, rng)
    back = turned_by(layer, made.queries, -np.arange(layer.seq_len))
    return _left_out(layer, dataclasses.replace(made, queries=back, keys=turned(layer, made.keys)), rng)


#: One simulator per mistake.
TURNED: tuple[Fault, ...] = (
    Fault(
        "undeclared_rotary",
        f"undeclared rotary positions are applied (rotary_base={_BASE:g})",
        _UNDECLARED,
        LiteralSimulator(score=_applied),
    ),
    Fault(
        "rotary_left_out",
        "declared rotary positions are not applied",
        _ROTARY & CORRELATED_POSITIONS,
        LiteralSimulator(score=_left_out),
    ),
    Fault(
        "rotary_of_keys",
        "rotary positions turn only the keys, not the queries",
        _ROTARY & CORRELATED_POSITIONS,
        LiteralSimulator(score=_keys_alone),
    ),
    Fault(
        "rotary_against",
        "rotary positions turn queries and keys in opposite directions",
        _ROTARY & CORRELATED_POSITIONS,
        LiteralSimulator(score=_against),
    ),
)
