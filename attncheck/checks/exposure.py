"""Substitutes for exposed arrays: attention weights for scores, and keys for their Gram matrices."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, visible

# Relative error of row sums and recomputed weights in half precision.
_ROUNDING = 1e-2


def with_scores(layer: AttentionLayer, given: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return arrays with scores in place of attention weights, for linear and sigmoid attention.

    Softmax determines scores only up to a constant per row, and relu only positive ones, so those weights stay.

    Raises
    ------
    InputError
        For weights that do not fit the layer: nonzero behind the mask, softmax rows that do not add up to 1, or
        weights that disagree with given scores.

    Examples
    --------
    >>> layer = AttentionLayer(width=4, seq_len=2, num_heads=1, attention_map="sigmoid", mask="causal")
    >>> with_scores(layer, {"attention": np.array([[[[0.5, 0.0], [0.2, 0.5]]]])})["scores"].round(3)
    array([[[[ 0.693,   -inf],
             [-0.693,  0.693]]]])
    """
    if "attention" not in given:
        return given
    weights, seen = given["attention"], visible(layer)
    others = {name: value for name, value in given.items() if name != "attention"}
    remedy = f"return the weights of {layer.describe()!r}, before any dropout"
    _refuse_unless(not (weights[..., ~seen] != 0.0).any(), weights, "is not 0 behind the mask", remedy)
    if "scores" in given:
        off = np.abs(attention_weights(layer, given["scores"]) - weights).max()
        close = off <= _ROUNDING * max(1.0, float(np.abs(weights).max()))
        _refuse_unless(
            bool(close), off, "is the largest difference from the weights computed from the given scores", remedy
        )
        return others
    scores = layer.map.scores_of(weights, seen)
    if scores is not None:
        return {**others, "scores": np.where(seen, scores, -np.inf)}
    if layer.map.traits.positive:
        _refuse_unless(not (weights < 0.0).any(), float(weights.min()), "is below 0", remedy)
    if layer.map.traits.sums_to_one:
        off = np.abs(weights.sum(axis=-1) - 1.0).max()
        _refuse_unless(bool(off <= _ROUNDING), off, "is the largest error of row sums, which must be 1", remedy)
    return given


def with_keys(layer: AttentionLayer, given: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return arrays with the key Grams computed from keys, keeping keys only for rotary layers."""
    if "keys" not in given:
        return given
    keys = given["keys"]
    gram = keys @ keys.swapaxes(-1, -2) / layer.head_width
    told = given.get("key_gram", gram)
    if np.abs(told - gram).max() > _ROUNDING * np.abs(gram).max():
        refuse("subject['key_gram']", "...", "differs from K Kᵀ/ν of the given keys", "return keys alone")
    kept = {name: value for name, value in given.items() if name != "keys" or layer.rotary_base is not None}
    return {**kept, "key_gram": told}


def _refuse_unless(right: bool, value: object, problem: str, remedy: str) -> None:
    if not right:
        refuse("subject['attention']", value, problem, remedy)
