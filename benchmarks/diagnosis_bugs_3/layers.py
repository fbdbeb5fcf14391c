"""Layers on which a bug shows: what the right stages can simulate, and conditions of the bug."""

from __future__ import annotations

from collections.abc import Callable

from attncheck import AttentionLayer
from benchmarks.diagnosis_bugs.parts import Supports

_NONE = ("rotary_base", "norm", "window", "softcap", "sink", "bias_slopes")


def plain(layer: AttentionLayer) -> bool | str:
    """Return whether the right stages simulate the layer, or what they lack."""
    if layer.mask not in ("none", "causal"):
        return "a mask other than causal is not simulated"
    if not isinstance(layer.attention_map, str) or ":" in layer.attention_map:
        return "a custom attention map is not simulated"
    lacking = [name for name in _NONE if getattr(layer, name) is not None]
    lacking += [name for name in ("bias_std", "qk_norm", "tied_query_key") if getattr(layer, name)]
    return f"{lacking[0]} is not simulated" if lacking else True


def where(condition: Callable[[AttentionLayer], bool], reason: str) -> Supports:
    """Return what supports plain layers that fulfil a condition."""

    def supports(layer: AttentionLayer) -> bool | str:
        able = plain(layer)
        return able if able is not True else condition(layer) or reason

    return supports


heads = where(lambda layer: layer.num_heads > 1, "the bug needs two heads")
positions = where(lambda layer: layer.seq_len > 1, "the bug needs two positions")
softmax = where(
    lambda layer: layer.attention_map == "softmax" and layer.seq_len > 1, "the bug needs softmax over two positions"
)


def without(names: str) -> str:
    """Return a pattern of sentences that do not match `names`."""
    return rf"^(?!.*(?:{names}))"


#: Patterns of wrong sizes.
LARGER = r"(?<![\d.])[1-9]\d*(\.\d+)? times|larger|too large|greater"
SMALLER = r"\b0\.\d+ times|1/\S+ times|smaller|too small"
#: Patterns of sentences that do not blame another matrix or stage.
NOT_WEIGHT = without(r"\bW_?\^?[QKVO]\b")
NOT_OUTPUT = without(r"\bW_?\^?O\b|output")
NOT_VALUE = without(r"\bW_?\^?V\b|values")
NOT_MAP = without("attention (weight|map)|softmax")
