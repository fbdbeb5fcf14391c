"""Soft caps: scores squashed smoothly into a range (Gemma 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attncheck._lib.errors import check_number
from attncheck.layers.parts.part import LayerPart, Misreading

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

_RANGE = (1e-3, 1e6)


class SoftcapPart(LayerPart):
    """The field `softcap`: the map receives c tanh(P/c) in place of P."""

    fields: ClassVar[Mapping[str, Any]] = {"softcap": None}
    name: ClassVar[str] = "softcap"
    refusals: ClassVar[Mapping[str, str]] = {
        "long sequences": "changes the law of the scores",
        "homogeneous scores": "bounds the scores",
    }
    example: ClassVar[Mapping[str, Any]] = {"softcap": 1.0, "query_std": 2.0}
    undeclared: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"scores are capped, although no softcap is declared (about softcap={cap:g})": {"softcap": cap}
        for cap in (1.0, 2.0, 5.0)
    }
    misreadings: ClassVar[tuple[Misreading, ...]] = (
        Misreading(
            "ignored_softcap",
            "the soft cap of the scores is left out",
            lambda layer: {"softcap": None},
            "conditional.joint",
        ),
    )

    def shows(self, layer: AttentionLayer, variant: AttentionLayer) -> bool:
        """Return whether the cap is at most twice the standard deviation of the scores."""
        scores = layer.query_std * layer.key_std * layer.score_factor * layer.input_scale**2
        return layer.seq_len > 1 and layer.softcap is not None and layer.softcap <= 2.0 * scores

    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated `softcap`."""
        remedy = f"pass a number between {_RANGE[0]:g} and {_RANGE[1]:g}, e.g. softcap=50.0, or None"
        return {"softcap": check_number("softcap", layer.softcap, remedy, minimum=_RANGE[0], maximum=_RANGE[1])}

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return field values for random layers."""
        return [{"softcap": cap} for cap in (1.0, 3.0, 30.0)]
