"""Simulators that are wrong in one regime only."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

import attncheck.layers.nonlinearity as nonlinearity
from attncheck.faults.fault import Fault, FloatArray
from attncheck.faults.literal import LiteralSimulator, Projections, independent
from attncheck.faults.wrong_scales import MisreadLayer
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised
from attncheck.layers.requirements import (
    CAUSAL,
    LINEAR_ATTENTION,
    LOW_RANK,
    ONE_POSITION,
    OVER_N,
    PLAIN_INPUTS,
    POSITION_VECTORS,
    RELU_INPUTS,
    SMALL_HEADS,
    TIED,
    TWO_SCALINGS,
    UNTIED,
    OfLayer,
)
from attncheck.simulators.collapsed import draw_hidden, draw_positions
from attncheck.simulators.weights import draw_with_weights
from attncheck.subject import collapsed

# Number of heads with their own weights.
_OWN_HEADS = 16
_STDS = ("query_std", "key_std", "value_std", "output_std", "input_std")


def _over_root_n(layer: AttentionLayer) -> dict[str, Any]:
    return {} if layer.tied_query_key else {"score_scaling": "1/sqrt(n)"}


_REPEATABLE = OfLayer(
    "heads with keys of their own", lambda layer: layer.group_size == 1, "grouped heads are covered by another fault"
) & OfLayer("many heads", lambda layer: layer.num_heads > _OWN_HEADS, f"there are no more than {_OWN_HEADS} heads")


def _repeat(layer: AttentionLayer, heads: FloatArray) -> FloatArray:
    """Copy the first heads to the others, along the second axis."""
    repeated = layer.num_heads > _OWN_HEADS and layer.group_size == 1
    return heads[:, np.arange(layer.num_heads) % _OWN_HEADS] if repeated else heads


def _repeated_projections(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    made = independent(layer, inputs, rng)
    parts = {name: _repeat(layer, getattr(made, name)) for name in ("queries", "keys", "values")}
    return dataclasses.replace(made, **parts)


def _repeated_output_matrices(
    layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator
) -> FloatArray:
    matrices = rng.standard_normal((*mixed.shape[:2], layer.head_width, coordinates))
    std = layer.output_std * layer.head_factor * layer.head_width**-0.5
    return np.asarray(std * (mixed @ _repeat(layer, matrices)).sum(axis=1))


def _centred(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Subtract the mean of relu(h + e)."""
    mean = layer.inputs.hidden_std / math.sqrt(2.0 * math.pi) if layer.activation == "relu" else 0.0
    return independent(layer, inputs - mean, rng)


def _positions_apart(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw the e^i separately for scores and values; the inputs of the values are exposed."""
    hidden, lengths = draw_hidden(layer, size, rng)
    hidden *= (lengths * layer.input_std)[:, None, None]
    phi = nonlinearity.of_inputs(layer.inputs)
    drawn = (normalised(layer.norm, phi(hidden + draw_positions(layer, size, rng))) for _ in range(2))
    values, scores = (independent(layer, inputs, rng) for inputs in drawn)
    return LiteralSimulator().after(layer, dataclasses.replace(values, queries=scores.queries, keys=scores.keys), rng)


def _skipped_values(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Return the input where there is one position."""
    drawn = collapsed(layer, size, rng)
    return {**drawn, "outputs": drawn["inputs"].copy()} if layer.seq_len == 1 else drawn


@dataclasses.dataclass(frozen=True)
class _UnscaledUniform:
    """Literal matrices with entries uniform on ±std/√n, whose standard deviation is std/√(3n)."""

    weights: str = "uniform"

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw with all standard deviations divided by √3."""
        narrower = layer.replace(**{name: getattr(layer, name) / 3.0**0.5 for name in _STDS})
        return draw_with_weights(narrower, size, min(layer.width, 2), rng, self.weights).as_dict()


FAULTS = (
    Fault(
        "ignored_over_n",
        "scores are divided by √n where 1/n is declared",
        OVER_N & TWO_SCALINGS & UNTIED,
        MisreadLayer(_over_root_n),
    ),
    Fault(
        "full_rank_heads",
        "head_dim is ignored: heads are as wide as the layer",
        LOW_RANK,
        MisreadLayer(lambda layer: {"head_dim": None}),
    ),
    Fault(
        "linear_as_softmax",
        "softmax is applied where linear attention is declared",
        LINEAR_ATTENTION,
        MisreadLayer(lambda layer: {"attention_map": "softmax"}),
    ),
    Fault(
        "repeated_heads",
        f"heads beyond number {_OWN_HEADS} repeat the weights of the first {_OWN_HEADS}",
        _REPEATABLE,
        LiteralSimulator(project=_repeated_projections, finish=_repeated_output_matrices),
    ),
    Fault(
        "untied_query_key",
        "W_Q and W_K are drawn separately where one matrix is declared",
        TIED,
        MisreadLayer(lambda layer: {"tied_query_key": False}),
    ),
    Fault(
        "centred_relu",
        "the mean of relu is subtracted from the inputs",
        RELU_INPUTS & PLAIN_INPUTS,
        LiteralSimulator(project=_centred),
    ),
    Fault(
        "forgotten_positions",
        "positions are not added to the inputs",
        POSITION_VECTORS,
        MisreadLayer(lambda layer: {"position_std": 0.0, "position_reach": 1.0}),
    ),
    Fault(
        "positions_apart",
        "scores and values use separately drawn position vectors",
        POSITION_VECTORS,
        _positions_apart,
    ),
    Fault(
        "skipped_values",
        "a single position is returned without W_V and W_O",
        ONE_POSITION,
        _skipped_values,
    ),
    Fault(
        "ignored_mask",
        "every position sees all others where a causal mask is declared",
        CAUSAL,
        MisreadLayer(lambda layer: {"mask": "none"}),
    ),
    Fault(
        "unscaled_uniform_weights",
        "weights that are declared uniform lack the factor √3: the entries lie within one standard deviation",
        SMALL_HEADS,
        _UnscaledUniform(),
    ),
)
