"""Sinks: softmax with a constant in its denominator (off-by-one softmax; GPT-OSS learns one per head)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attncheck._lib.errors import check_number, refuse
from attncheck.layers.parts.part import LayerPart, Misreading

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

# Larger sinks make all weights smaller than single-precision rounding.
_REACH = 30.0


class SinkPart(LayerPart):
    """The field `sink`: A_ij = exp(P_ij)/(exp(sink) + Σ_k exp(P_ik))."""

    fields: ClassVar[Mapping[str, Any]] = {"sink": None}
    name: ClassVar[str] = "sink"
    refusals: ClassVar[Mapping[str, str]] = {"long sequences": "has rows that do not sum to 1"}
    example: ClassVar[Mapping[str, Any]] = {"sink": 0.0}
    undeclared: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "softmax has an extra 1 in its denominator (sink=0)": {"sink": 0.0}
    }
    misreadings: ClassVar[tuple[Misreading, ...]] = (
        Misreading(
            "ignored_sink",
            "the sink is left out: weights of a row sum to 1",
            lambda layer: {"sink": None},
            "conditional.scale",
        ),
    )

    def shows(self, layer: AttentionLayer, misread: AttentionLayer) -> bool:
        """Return True, since a sink changes weights at any sequence length."""
        return True

    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated `sink`."""
        if layer.attention_map != "softmax":
            problem = f"belongs to softmax, and attention_map is {layer.attention_map!r}"
            refuse("sink", layer.sink, problem, "leave out one of them")
        remedy = f"pass the sink's score, from {-_REACH:g} to {_REACH:g}; 0 adds 1 to the denominator; or None"
        return {"sink": check_number("sink", layer.sink, remedy, minimum=-_REACH, maximum=_REACH)}

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return values for random layers."""
        return [{"sink": sink} for sink in (0.0, 1.0, -1.0)] if layer.attention_map == "softmax" else []
