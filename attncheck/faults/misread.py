"""Simulators with a plausible mistake about an optional part of the layer; see `attncheck.layers.parts.Misreading`."""

from __future__ import annotations

from attncheck.faults.fault import Fault, MisreadLayer
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import PARTS, LayerPart, Misreading
from attncheck.layers.requirement import Requirement


def _fault(part: LayerPart, mutant: Misreading) -> Fault:
    def differs(layer: AttentionLayer) -> bool:
        return part.present(layer) and part.shows(layer, layer.replace(**mutant.changes(layer)))

    requires = Requirement(f"{part.name} that matters", differs, f"the layer has no {part.name} with a visible effect")
    return Fault(mutant.name, mutant.what, requires, MisreadLayer(mutant.changes))


FAULTS = tuple(_fault(part, mutant) for part in PARTS for mutant in part.misreadings)
