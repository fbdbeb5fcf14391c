"""Simulators that normalise wrongly; correct in layers without a norm."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.faults.fault import Fault, declared, misread
from attncheck.faults.literal import LiteralSimulator, independent
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised
from attncheck.layers.requirements import NORMALISED_INPUTS, SEVERAL_POSITIONS, SMALL_WIDTH, OfLayer
from attncheck.simulators.collapsed import draw_inputs

_TOLD_APART = OfLayer(
    "two norms that differ",
    lambda layer: layer.width > 1 and (layer.activation == "relu" or layer.width <= SMALL_WIDTH),
    f"the two norms differ by less than one neuron in {SMALL_WIDTH}, or are not both declared",
)


FAULTS: list[Fault] = []


@misread(FAULTS, "the inputs are not normalised where a norm is declared", NORMALISED_INPUTS)
def _forgotten_norm(layer: AttentionLayer) -> dict[str, None]:
    return {"norm": None}


@misread(
    FAULTS,
    "the inputs have layer norm where RMS norm is declared, or the reverse",
    NORMALISED_INPUTS & _TOLD_APART,
)
def _other_norm(layer: AttentionLayer) -> dict[str, str]:
    if layer.norm is None or layer.width == 1:
        return {}
    return {"norm": "layer" if layer.norm == "rms" else "rms"}


@declared(
    FAULTS,
    "each neuron is normalised over the positions, in place of each position over the neurons",
    NORMALISED_INPUTS & SEVERAL_POSITIONS,
)
def _norm_over_positions(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Normalise each neuron over positions instead of each position over neurons."""
    inputs = draw_inputs(layer.replace(norm=None), size, rng)
    inputs = normalised(layer.norm, inputs.swapaxes(-1, -2)).swapaxes(-1, -2)
    return LiteralSimulator().after(layer, independent(layer, inputs, rng), rng)
