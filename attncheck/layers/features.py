"""Predicates for optional layer features."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.inputs import DEFAULT_CLIP
from attncheck.layers.parts import PARTS

_STDS = ("query_std", "key_std", "value_std", "output_std", "input_std")

#: Maps the name of each feature to a function that tells whether a layer has it.
FEATURES: Mapping[str, Callable[[AttentionLayer], bool]] = {
    "causal": lambda layer: layer.mask == "causal",
    "grouped heads": lambda layer: layer.num_kv_heads is not None,
    "fixed head_dim": lambda layer: layer.head_dim is not None,
    "scores below 1/√n": lambda layer: layer.score_exponent > 0.5,
    "tied queries and keys": lambda layer: layer.tied_query_key,
    "not softmax": lambda layer: layer.attention_map != "softmax",
    "other φ": lambda layer: layer.activation != "clip" or layer.clip != DEFAULT_CLIP,
    "other standard deviations": lambda layer: any(getattr(layer, name) != 1.0 for name in _STDS),
    "plain sum of heads": lambda layer: not layer.head_scaling,
    "correlated inputs": lambda layer: layer.input_correlation != 0.0,
    "position vectors": lambda layer: layer.position_std != 0.0,
    "normalised inputs": lambda layer: layer.norm is not None,
    **{part.name: part.present for part in PARTS},
}


def features_of(layer: AttentionLayer) -> tuple[str, ...]:
    """Return the features of a layer, in the order of `FEATURES`.

    Examples
    --------
    >>> features_of(AttentionLayer(width=8, mask="causal", activation="relu"))
    ('causal', 'other φ')
    """
    return tuple(name for name, has in FEATURES.items() if has(layer))
