"""Optional parts of an attention layer, one module each.

A part owns its fields and their validation, what it does to scores or weights, the random configurations of
`attncheck.strategies`, and the ways in which it is misread, which are faults and candidate causes. `PARTS` lists them.
"""

from __future__ import annotations

from attncheck.layers.parts.attention_map import AttentionMapPart
from attncheck.layers.parts.mask import MaskPart
from attncheck.layers.parts.part import LayerPart, Misreading
from attncheck.layers.parts.rotary import RotaryPart
from attncheck.layers.parts.sink import SinkPart
from attncheck.layers.parts.softcap import SoftcapPart
from attncheck.layers.parts.window import WindowPart

__all__ = ["PARTS", "LayerPart", "Misreading", "named_parts"]

#: The parts, in the order in which their fields are validated.
PARTS: tuple[LayerPart, ...] = (
    AttentionMapPart(),
    MaskPart(),
    RotaryPart(),
    WindowPart(),
    SoftcapPart(),
    SinkPart(),
)


def named_parts() -> tuple[LayerPart, ...]:
    """Return the parts beyond the paper's layer, which strategies draw on request only."""
    return tuple(part for part in PARTS if part.name)
