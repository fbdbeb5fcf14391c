"""Simulators that are wrong in one regime only; those that normalise wrongly are correct in layers without a norm."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.faults.fault import Fault, declared, with_changed_fields
from attncheck.layers import requirements as need
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised
from attncheck.layers.requirements import OfLayer
from attncheck.simulators.collapsed import draw_hidden, draw_inputs, draw_positions
from attncheck.simulators.literal import LiteralSimulator, Projections, independent, summed_over_heads
from attncheck.simulators.weights import draw_with_weights
from attncheck.subject import collapsed

# Number of heads that draw their own weights; later heads repeat these weights.
_UNSHARED_HEADS = 16
_STDS = ("query_std", "key_std", "value_std", "output_std", "input_std")


_DISTINGUISHABLE = OfLayer(
    "two norms that differ",
    lambda layer: layer.width > 1 and (layer.activation == "relu" or layer.width <= need.SMALL_WIDTH),
    "RMS norm and layer norm hardly differ in this layer, or it has one neuron only",
)
_REPEATABLE = OfLayer(
    "heads with separate keys", lambda layer: layer.group_size == 1, "grouped heads are covered by another fault"
) & OfLayer(
    "many heads", lambda layer: layer.num_heads > _UNSHARED_HEADS, f"there are no more than {_UNSHARED_HEADS} heads"
)


def _repeat(layer: AttentionLayer, heads: FloatArray) -> FloatArray:
    """Replace the heads after the first `_UNSHARED_HEADS` by copies of the first ones.

    `heads` is an array with one entry per head on its second axis. It is returned unchanged if the layer has few heads,
    or heads that share keys.
    """
    repeated = layer.num_heads > _UNSHARED_HEADS and layer.group_size == 1
    return heads[:, np.arange(layer.num_heads) % _UNSHARED_HEADS] if repeated else heads


def _repeated_output_matrices(
    layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: np.random.Generator
) -> FloatArray:
    matrices = rng.standard_normal((*mixed.shape[:2], layer.head_width, coordinates))
    return summed_over_heads(layer, mixed @ _repeat(layer, matrices))


FAULTS: list[Fault] = []


@with_changed_fields(
    FAULTS, "scores are divided by √n where 1/n is declared", need.OVER_N & need.TWO_SCALINGS & need.UNTIED
)
def _ignored_over_n(layer: AttentionLayer) -> dict[str, Any]:
    return {} if layer.tied_query_key else {"score_scaling": "1/sqrt(n)"}


@with_changed_fields(FAULTS, "head_dim is ignored: heads are as wide as the layer", need.LOW_RANK)
def _full_rank_heads(layer: AttentionLayer) -> dict[str, Any]:
    return {"head_dim": None}


@with_changed_fields(FAULTS, "softmax is applied where linear attention is declared", need.LINEAR_ATTENTION)
def _linear_as_softmax(layer: AttentionLayer) -> dict[str, Any]:
    return {"attention_map": "softmax"}


@declared(
    FAULTS,
    f"heads beyond number {_UNSHARED_HEADS} repeat the weights of the first {_UNSHARED_HEADS}",
    _REPEATABLE,
    step="arrange",
    finish=_repeated_output_matrices,
)
def _repeated_heads(layer: AttentionLayer, projections: Projections) -> Projections:
    parts = {name: _repeat(layer, getattr(projections, name)) for name in ("queries", "keys", "values")}
    return dataclasses.replace(projections, **parts)


@with_changed_fields(FAULTS, "W_Q and W_K are drawn separately where one matrix is declared", need.TIED)
def _untied_query_key(layer: AttentionLayer) -> dict[str, Any]:
    return {"tied_query_key": False}


@declared(
    FAULTS, "the mean of relu is subtracted from the inputs", need.RELU_INPUTS & need.PLAIN_INPUTS, step="project"
)
def _centred_relu(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Subtract the mean of φ(h^i + e^i), with φ = ReLU, from the inputs before projecting them."""
    mean = layer.hidden_std / math.sqrt(2.0 * math.pi) if layer.activation == "relu" else 0.0
    return independent(layer, inputs - mean, rng)


@with_changed_fields(FAULTS, "position vectors are not added to the inputs", need.POSITION_VECTORS)
def _forgotten_positions(layer: AttentionLayer) -> dict[str, Any]:
    return {"position_std": 0.0, "position_reach": 1.0}


@declared(FAULTS, "scores and values use separately drawn position vectors", need.POSITION_VECTORS)
def _positions_apart(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw separate position vectors for scores and for values.

    The returned inputs are those from which the values are computed.
    """
    hidden, lengths = draw_hidden(layer, size, rng)
    hidden *= (lengths * layer.input_std)[:, None, None]
    phi = layer.phi
    drawn = (normalised(layer.norm, phi(hidden + draw_positions(layer, size, rng))) for _ in range(2))
    values, scores = (independent(layer, inputs, rng) for inputs in drawn)
    return LiteralSimulator().after(layer, dataclasses.replace(values, queries=scores.queries, keys=scores.keys), rng)


@declared(FAULTS, "the output of a single position is its input, not multiplied by W_V and W_O", need.ONE_POSITION)
def _skipped_values(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Return the inputs as outputs if there is one position."""
    drawn = collapsed(layer, size, rng)
    return {**drawn, "outputs": drawn["inputs"].copy()} if layer.seq_len == 1 else drawn


@with_changed_fields(FAULTS, "every position sees all others where a causal mask is declared", need.CAUSAL)
def _ignored_mask(layer: AttentionLayer) -> dict[str, Any]:
    return {"mask": "none"}


@dataclasses.dataclass(frozen=True)
class _UnscaledUniform:
    """Simulator whose matrix entries are uniform on ±std/√n, so that their standard deviation is std/√(3n)."""

    weights: str = "uniform"

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw with all standard deviations divided by √3."""
        narrower = layer.replace(**{name: getattr(layer, name) / 3.0**0.5 for name in _STDS})
        return draw_with_weights(narrower, size, min(layer.width, 2), rng, self.weights).as_dict()


FAULTS.append(
    Fault(
        "unscaled_uniform_weights",
        "weights that are declared uniform lack the factor √3: the entries lie within one standard deviation",
        need.SMALL_HEADS,
        _UnscaledUniform(),
    )
)


@with_changed_fields(FAULTS, "the inputs are not normalised where a norm is declared", need.NORMALISED_INPUTS)
def _forgotten_norm(layer: AttentionLayer) -> dict[str, None]:
    return {"norm": None}


@with_changed_fields(
    FAULTS,
    "the inputs have layer norm where RMS norm is declared, or the reverse",
    need.NORMALISED_INPUTS & _DISTINGUISHABLE,
)
def _other_norm(layer: AttentionLayer) -> dict[str, str]:
    if layer.norm is None or layer.width == 1:
        return {}
    return {"norm": "layer" if layer.norm == "rms" else "rms"}


@declared(
    FAULTS,
    "each neuron is normalised over the positions, in place of each position over the neurons",
    need.NORMALISED_INPUTS & need.SEVERAL_POSITIONS,
)
def _norm_over_positions(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Normalise each neuron over positions instead of each position over neurons."""
    inputs = draw_inputs(layer.replace(norm=None), size, rng)
    inputs = normalised(layer.norm, inputs.swapaxes(-1, -2)).swapaxes(-1, -2)
    return LiteralSimulator().after(layer, independent(layer, inputs, rng), rng)
