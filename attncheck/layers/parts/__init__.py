"""Optional parts of an attention layer, one module each.

A part defines its fields, their validation, its effect on scores or weights, random values for `attncheck.strategies`,
and plausible mistakes, which serve as faults and candidate causes. `PARTS` lists the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck._lib.errors import refuse
from attncheck.layers.parts.part import LayerPart, Misreading
from attncheck.layers.parts.position_bias import PositionBiasPart
from attncheck.layers.parts.qk_norm import QKNormPart
from attncheck.layers.parts.rotary import RotaryPart
from attncheck.layers.parts.sink import SinkPart
from attncheck.layers.parts.softcap import SoftcapPart
from attncheck.layers.parts.window import WindowPart

__all__ = ["PARTS", "LayerPart", "Misreading", "refuse_parts", "refusing"]

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer

#: The parts, in the order in which their fields are validated.
PARTS: tuple[LayerPart, ...] = (
    RotaryPart(),
    WindowPart(),
    SoftcapPart(),
    SinkPart(),
    PositionBiasPart(),
    QKNormPart(),
)


def refuse_parts(layer: AttentionLayer, reading: str) -> None:
    """Raise `InputError` if the computation `reading`, e.g. "tangent kernel", does not support a part of the layer."""
    for part in refusing(layer, reading):
        field = next(name for name, absent in part.fields.items() if getattr(layer, name) != absent)
        absent = part.fields[field]
        refuse(f"layer.{field}", getattr(layer, field), part.refusals_of(layer)[reading], f"use {field}={absent}")


def refusing(layer: AttentionLayer, reading: str) -> list[LayerPart]:
    """Return the parts of a layer that the computation `reading`, e.g. "tangent kernel", does not support."""
    return [part for part in PARTS if part.present(layer) and reading in part.refusals_of(layer)]
