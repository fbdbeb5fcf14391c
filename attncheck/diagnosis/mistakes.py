"""Common mistakes in attention layers, as candidate causes beside the named faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck.faults.fault import Fault
from attncheck.faults.literal import LiteralSimulator, Projections, dot_products, independent, project_out
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, map_scores, visible
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import CAUSAL, SEVERAL_GROUPS, SEVERAL_HEADS, SEVERAL_POSITIONS, SOFTMAX, OfLayer

FloatArray = NDArray[np.float64]
Rng = np.random.Generator

_DROPPED = (0.1, 0.2, 0.5)


def _sharing(*names: str) -> LiteralSimulator:
    """Share the first head's projections among all heads."""

    def project(layer: AttentionLayer, inputs: FloatArray, rng: Rng) -> Projections:
        made = independent(layer, inputs, rng)
        first: dict[str, Any] = {name: np.repeat(getattr(made, name)[:, :1], layer.num_heads, axis=1) for name in names}
        return dataclasses.replace(made, **first)

    return LiteralSimulator(project=project)


def _sliced(shared: bool) -> LiteralSimulator:
    """Project a separate slice of the inputs in each head."""

    def project(layer: AttentionLayer, inputs: FloatArray, rng: Rng) -> Projections:
        if _DIVIDED.reason(layer):
            return independent(layer, inputs, rng)
        heads, entries = layer.num_heads, layer.width // layer.num_heads
        slices = inputs.reshape(*inputs.shape[:2], heads, entries).swapaxes(1, 2)

        def made(std: float) -> FloatArray:
            matrices = rng.standard_normal((len(inputs), 1 if shared else heads, entries, layer.head_width))
            return np.asarray(std * entries**-0.5 * slices @ matrices)

        return Projections(inputs, made(layer.query_std), made(layer.key_std), made(layer.value_std))

    return LiteralSimulator(project=project)


_DIVIDED = OfLayer(
    "inputs with a slice for each head",
    lambda layer: layer.num_heads > 1 and layer.num_kv_heads is None and layer.width % layer.num_heads == 0,
    "the inputs cannot be cut into a slice for each head",
)


def _split_by_view(layer: AttentionLayer, inputs: FloatArray, rng: Rng) -> Projections:
    made = independent(layer, inputs, rng)

    def viewed(vectors: FloatArray) -> FloatArray:
        return vectors.swapaxes(1, 2).reshape(vectors.shape)

    return Projections(inputs, viewed(made.queries), viewed(made.keys), viewed(made.values))


def _restored(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    """Merge heads with the same view that split them."""
    N, heads, s, width = mixed.shape
    return project_out(layer, mixed.reshape(N, s, heads, width).swapaxes(1, 2), coordinates, rng)


def _activated(layer: AttentionLayer, inputs: FloatArray, rng: Rng) -> Projections:
    made = independent(layer, inputs, rng)
    return Projections(inputs, *(np.maximum(each, 0.0) for each in (made.queries, made.keys, made.values)))


def _one_input(layer: AttentionLayer, inputs: FloatArray, rng: Rng) -> Projections:
    """Use the first position's keys and values for all positions."""
    made = independent(layer, inputs, rng)
    s = layer.seq_len
    first: dict[str, Any] = {name: np.repeat(getattr(made, name)[:, :, :1], s, axis=2) for name in ("keys", "values")}
    return dataclasses.replace(made, **first)


def _over_heads(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    joint = np.where(visible(layer), scores, -np.inf)
    weights = np.exp(joint - joint.max(axis=(1, 3), keepdims=True))
    return np.asarray(weights / weights.sum(axis=(1, 3), keepdims=True))


def _among_heads(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(np.where(visible(layer), weights / weights.sum(axis=1, keepdims=True), 0.0))


def _seeing(see: Callable[[AttentionLayer], NDArray[np.bool_]]) -> LiteralSimulator:
    return LiteralSimulator(weigh=lambda layer, scores: map_scores(layer, scores, see(layer)))


def _later_only(rest: float) -> LiteralSimulator:
    """Attend to later positions only; the last attends to all with weight `rest`."""

    def weigh(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        if layer.mask == "none":
            return attention_weights(layer, scores)
        weights = np.full(scores.shape, rest / layer.seq_len)
        weights[:, :, :-1] = map_scores(layer, scores[:, :, :-1], ~visible(layer)[:-1])
        return weights

    return LiteralSimulator(weigh=weigh)


def _filled_with_zero(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return map_scores(layer, np.where(visible(layer), scores, 0.0), np.ones_like(visible(layer)))


def _masked_after(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return np.where(visible(layer), map_scores(layer, scores, np.ones_like(visible(layer))), 0.0)


def _unscaled(layer: AttentionLayer, made: Projections, rng: Rng) -> FloatArray:
    return np.asarray(dot_products(layer, made, rng) / (layer.score_factor * layer.head_width**-0.5))


def _scaled_after(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return np.asarray(attention_weights(layer, scores) * layer.score_factor * layer.head_width**-0.5)


@dataclasses.dataclass(frozen=True)
class _DroppedWeights(LiteralSimulator):
    """Simulator with dropout on the attention weights."""

    share: float = 0.0

    def after(self, layer: AttentionLayer, made: Projections, rng: Rng) -> dict[str, FloatArray]:
        """Draw a layer from its projections."""

        def weigh(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
            kept = rng.random(scores.shape) >= self.share
            return attention_weights(layer, scores) * kept / (1.0 - self.share)

        return LiteralSimulator(weigh=weigh).after(layer, made, rng)


def _concatenated(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    neurons = [(c // layer.head_width % layer.num_heads, c % layer.head_width) for c in range(coordinates)]
    return np.stack([mixed[:, head, :, neuron] for head, neuron in neurons], axis=-1)


def _added_up(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    neurons = [c % layer.head_width for c in range(coordinates)]
    return np.asarray(layer.head_factor * mixed.sum(axis=1)[:, :, neurons])


def _merged_by_view(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    viewed = mixed.reshape(len(mixed), layer.seq_len, layer.num_heads, layer.head_width).swapaxes(1, 2)
    return project_out(layer, viewed, coordinates, rng)


def _with_bias(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    bound = (layer.num_heads * layer.head_width) ** -0.5
    bias = rng.uniform(-bound, bound, (len(mixed), 1, coordinates))
    return project_out(layer, mixed, coordinates, rng) + bias


def _shared_output(layer: AttentionLayer, mixed: FloatArray, coordinates: int, rng: Rng) -> FloatArray:
    total = mixed.sum(axis=1, keepdims=True)
    one = layer.replace(num_heads=1, num_kv_heads=None, bias_slopes=None)
    return project_out(one, total, coordinates, rng) * layer.head_factor


def _future(layer: AttentionLayer) -> NDArray[np.bool_]:
    return np.triu(np.ones((layer.seq_len, layer.seq_len), dtype=bool))


def _past(layer: AttentionLayer) -> NDArray[np.bool_]:
    """Return a causal mask that hides the position itself, except the first."""
    seen = np.tril(np.ones((layer.seq_len, layer.seq_len), dtype=bool), k=-1)
    seen[0, 0] = True
    return seen


def _only_itself(layer: AttentionLayer) -> NDArray[np.bool_]:
    return np.eye(layer.seq_len, dtype=bool)


MISTAKES: tuple[Fault, ...] = (
    Fault("one_query_matrix", "all heads share one W_Q", SEVERAL_HEADS, _sharing("queries")),
    Fault("one_value_matrix", "all heads share one W_V", SEVERAL_GROUPS, _sharing("values")),
    Fault("one_query_key", "all heads share W_Q and W_K", SEVERAL_HEADS, _sharing("queries", "keys")),
    Fault(
        "same_heads",
        "all heads are the same: they share W_Q, W_K and W_V",
        SEVERAL_HEADS,
        _sharing("queries", "keys", "values"),
    ),
    Fault("one_output_matrix", "all heads share one W_O", SEVERAL_HEADS, LiteralSimulator(finish=_shared_output)),
    Fault(
        "split_by_view",
        "heads are split by a view without a transpose: positions and heads are mixed",
        SEVERAL_HEADS & SEVERAL_POSITIONS,
        LiteralSimulator(project=_split_by_view),
    ),
    Fault(
        "merged_by_view",
        "heads are merged by a view without a transpose: outputs mix positions",
        SEVERAL_HEADS & SEVERAL_POSITIONS,
        LiteralSimulator(finish=_merged_by_view),
    ),
    Fault(
        "split_and_merged_by_view",
        "heads are split and merged by a view without a transpose: a head mixes positions",
        SEVERAL_HEADS & SEVERAL_POSITIONS,
        LiteralSimulator(project=_split_by_view, finish=_restored),
    ),
    Fault("sliced_heads", "each head projects a slice of the inputs only", _DIVIDED, _sliced(shared=False)),
    Fault(
        "one_sliced_head",
        "each head projects a slice of the inputs, all with the same W_Q, W_K and W_V",
        _DIVIDED,
        _sliced(shared=True),
    ),
    Fault(
        "activated_projections",
        "queries, keys and values pass through relu",
        ANY,
        LiteralSimulator(project=_activated),
    ),
    Fault(
        "first_position_only",
        "the first position's keys and values are used for all positions",
        SEVERAL_POSITIONS,
        LiteralSimulator(project=_one_input),
    ),
    Fault(
        "softmax_over_all",
        "softmax normalises over heads and keys together",
        SOFTMAX & SEVERAL_HEADS,
        LiteralSimulator(weigh=_over_heads),
    ),
    Fault(
        "softmax_over_heads",
        "softmax normalises over heads instead of keys",
        SOFTMAX & SEVERAL_HEADS,
        LiteralSimulator(weigh=_among_heads),
    ),
    Fault(
        "inverted_mask",
        "the mask is inverted: a position sees itself and the later ones",
        SEVERAL_POSITIONS,
        _seeing(_future),
    ),
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
    Fault("strict_mask", "the mask hides a position from itself", SEVERAL_POSITIONS, _seeing(_past)),
    Fault("own_position_only", "each position attends to itself only", SEVERAL_POSITIONS, _seeing(_only_itself)),
    Fault(
        "masked_with_zero",
        "masked scores are 0 instead of −∞: later positions are seen",
        CAUSAL,
        LiteralSimulator(weigh=_filled_with_zero),
    ),
    Fault(
        "masked_after_softmax",
        "the mask is applied after softmax: rows of the attention do not sum to 1",
        SOFTMAX & CAUSAL,
        LiteralSimulator(weigh=_masked_after),
    ),
    Fault(
        "scaled_after_softmax",
        "the scale of the scores is applied after softmax",
        SOFTMAX,
        LiteralSimulator(score=_unscaled, weigh=_scaled_after),
    ),
    *(
        Fault(
            f"dropout_{share:g}",
            f"dropout of {share:.0%} of the attention weights is left on",
            ANY,
            _DroppedWeights(share=share),
        )
        for share in _DROPPED
    ),
    Fault(
        "no_output_matrix",
        "W_O is missing: each output is one neuron of one head",
        ANY,
        LiteralSimulator(finish=_concatenated),
    ),
    Fault("added_heads", "W_O is missing: heads are added up", ANY, LiteralSimulator(finish=_added_up)),
    Fault(
        "output_bias",
        "a bias shared by all positions is added to the outputs",
        ANY,
        LiteralSimulator(finish=_with_bias),
    ),
)
