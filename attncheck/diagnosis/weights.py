"""Attention weights that a subject uses, determined from its outputs, which are sums of values times weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.text import listed
from attncheck.checks.answers import Pair, Respond
from attncheck.checks.declared import WEIGHTS_OR_VALUES
from attncheck.evidence import plot_data
from attncheck.records.explanation import Explanation, exact

# Smallest relative difference of weights that is reported; nonlinearity of the outputs in small inputs is below it.
_CLEAR = 1e-2
# Differences of weights below this are rounding errors.
_ROUNDED = 1e-4
# Maximum number of weights in a message, and of positions of a layer.
_MOST_LINES, _MOST = 6, 16
# Number of decimals of displayed weights.
_DIGITS = 4


def weights_at_zero(pair: Pair) -> Iterator[Explanation]:
    """Find attention weights that are wrong where scores are 0; a common factor of all weights is ignored."""
    ours, declared = (common_weights(respond, pair) for respond in pair.both)
    if ours is None or declared is None:
        return
    factor = float((ours * declared).sum() / max(float((declared**2).sum()), 1e-300))
    gap = np.abs(ours - factor * declared)
    if factor <= 0.0 or gap.max() <= _CLEAR * factor * declared.max():
        return
    i = int(np.argmax(gap.max(axis=1)))
    listings = [listed(f"{weight:.3g}" for weight in row[:_MOST_LINES]) for row in (ours[i] / factor, declared[i])]
    text = f"where scores are 0, the weights of position {i} are {listings[0]}; declared {listings[1]}, up to a factor"
    plot = plot_data.positions(ours / factor, declared, "key", "Attention weights where scores are 0, up to a factor")
    yield exact(WEIGHTS_OR_VALUES, text, plot)


def weights_of_one_head(pair: Pair) -> Iterator[Explanation]:
    """Find attention weights that are wrong at the scores of the usual inputs, in a layer with one head.

    If all positions have the same input, the outputs are its value, as the weights of a query add up to 1. If they do
    not, and most weights are wrong, only their sums are compared with the sums for such inputs.
    """
    layer, scores, y = pair.layer, pair.usual[0].scores, pair.usual[0].outputs
    s = layer.seq_len
    determined = s <= min(_MOST, layer.width - 1, layer.head_width, y.shape[-1] - 1)
    if scores is None or layer.num_heads > 1 or not determined:
        return
    declared = layer.attention_weights(scores)[:, 0]
    if np.abs(declared.sum(axis=-1) - 1.0).max() > _CLEAR:
        return
    same = [pair.subject(np.repeat(pair.inputs[:, j : j + 1], s, axis=1)).outputs for j in range(s)]
    values = np.stack(same, axis=2)
    weights = np.einsum("nijk,nik->nij", np.linalg.pinv(values.swapaxes(-1, -2)), y)
    rest, sums = np.abs(np.einsum("nijk,nij->nik", values, weights) - y).max(), weights.sum(axis=-1)
    gap = np.abs(weights - declared)
    if rest > _CLEAR * np.abs(y).max() or gap.max() <= _CLEAR:
        return
    if np.abs(sums - 1.0).max() > _CLEAR and np.median(gap[:, layer.visible]) > _ROUNDED:
        text = f"outputs are those of attention weights that add up to {sums.min():.3g} to {sums.max():.3g} times"
        ask = "are weights rounded, cut or not normalised, or outputs rescaled?"
        yield exact(WEIGHTS_OR_VALUES, f"{text} their sum for equal inputs: {ask}")
        return
    n, i, j = np.unravel_index(int(np.argmax(gap)), gap.shape)
    weights = np.round(weights, _DIGITS) + 0.0
    text = f"a weight is {weights[n, i, j]:.3g}; declared {declared[n, i, j]:.3g}"
    plot = plot_data.positions(weights[n], declared[n], "key", "Attention weights of one draw")
    yield exact(WEIGHTS_OR_VALUES, f"where a score is {scores[n, 0, i, j]:.3g}, {text}", plot)


def common_weights(respond: Respond, pair: Pair) -> FloatArray | None:
    """Return the attention weights (positions, positions) of the simulator `respond` at scores of 0, up to a factor.

    The same small input is given at each position in turn. The result is None if weights differ between draws or heads,
    because outputs are then not multiples of one vector.
    """
    s = pair.layer.seq_len
    answered = _of_single_inputs(respond, pair, np.repeat(pair.inputs[:, :1], s, axis=1))
    at = int(np.argmax((answered**2).sum(axis=(0, 3))))
    unit = answered[:, at // s, at % s]
    weights = np.asarray(np.einsum("nijk,nk->ij", answered, unit) / max(float((unit**2).sum()), 1e-300))
    rest = answered - np.einsum("ij,nk->nijk", weights, unit)
    return weights if np.abs(rest).max() <= _CLEAR * np.abs(answered).max() else None


def _of_single_inputs(respond: Respond, pair: Pair, inputs: FloatArray) -> FloatArray:
    """Return outputs (draws, query, key, neurons) for a small input at the key's position and 0 at all others."""
    answers = []
    for j in range(pair.layer.seq_len):
        alone = np.zeros_like(inputs)
        alone[:, j] = pair.small * inputs[:, j]
        answers.append(respond(alone).outputs)
    return np.stack(answers, axis=2)
