"""Sinks: a constant in softmax's denominator, the same for all heads (off-by-one softmax) or one per head (GPT-OSS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attncheck._lib.errors import check_number, refuse
from attncheck.layers.parts.part import LayerPart, Misreading

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

# Larger sinks make all weights smaller than single-precision rounding.
_RANGE = 30.0
_BY_HEAD = {
    "finite-width law": "has no computed law at finite width, as it differs between heads",
    "law of one head": "differs between heads",
    "stack": "differs between heads, which is not supported in a stack",
}


class SinkPart(LayerPart):
    """The field `sink`: A_ij = exp(P_ij)/(exp(sink) + Σ_k exp(P_ik)); heads may have different sinks."""

    fields: ClassVar[Mapping[str, Any]] = {"sink": None}
    name: ClassVar[str] = "sink"
    refusals: ClassVar[Mapping[str, str]] = {"long sequences": "makes rows of attention weights that do not sum to 1"}
    example: ClassVar[Mapping[str, Any]] = {"sink": (-1.0, 1.0)}
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
        Misreading(
            "first_sink",
            "all heads use the sink of the first head",
            lambda layer: {"sink": layer.sink[0] if isinstance(layer.sink, tuple) else layer.sink},
            "conditional.scale",
        ),
    )

    def shows(self, layer: AttentionLayer, variant: AttentionLayer) -> bool:
        """Return whether the sinks differ, which changes weights at any sequence length."""
        return layer.sink != variant.sink

    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated `sink`: a number if it is the same in all heads."""
        if layer.attention_map != "softmax":
            problem = f"belongs to softmax, and attention_map is {layer.attention_map!r}"
            refuse("sink", layer.sink, problem, "leave out one of them")
        remedy = f"pass one sink from {-_RANGE:g} to {_RANGE:g}, one per head, or None; 0 adds 1 to the denominator"
        sinks = layer.sink if isinstance(layer.sink, list | tuple | np.ndarray) else [layer.sink]
        if sinks is layer.sink and len(sinks) != layer.num_heads:
            refuse("sink", sinks, f"is not one sink per head, for num_heads={layer.num_heads}", remedy)
        sinks = tuple(check_number("sink", sink, remedy, minimum=-_RANGE, maximum=_RANGE) for sink in sinks)
        return {"sink": sinks if len(set(sinks)) > 1 else sinks[0]}

    def of_head(self, layer: AttentionLayer, head: int) -> Mapping[str, Any]:
        """Return the sink of the given head."""
        return {"sink": layer.sink[head]} if isinstance(layer.sink, tuple) else {}

    def refusals_of(self, layer: AttentionLayer) -> Mapping[str, str]:
        """Return the computations that do not support the layer's sink, each with the reason."""
        return {**self.refusals, **(_BY_HEAD if isinstance(layer.sink, tuple) else {})}

    def describe(self, fields: Mapping[str, Any]) -> str:
        """Return the part with these field values as text."""
        sinks = fields["sink"] if isinstance(fields["sink"], list | tuple) else [fields["sink"]]
        return f"{'sinks' if len(sinks) > 1 else 'sink'} {', '.join(f'{sink:.3g}' for sink in sinks)}"

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return field values for random layers."""
        if layer.attention_map != "softmax":
            return []
        by_head = tuple(head % 3 - 1.0 for head in range(layer.num_heads))
        return [{"sink": sink} for sink in (0.0, 1.0, -1.0, by_head)]
