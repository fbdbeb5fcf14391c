"""Sliding windows: a position attends to near positions only (Mistral, Gemma)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attncheck._lib.errors import check_integer
from attncheck.layers.parts.part import LayerPart, Misreading

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


class WindowPart(LayerPart):
    """The field `window`: position i attends to j with |i - j| < window, where the mask allows it."""

    fields: ClassVar[Mapping[str, Any]] = {"window": None}
    name: ClassVar[str] = "window"
    example: ClassVar[Mapping[str, Any]] = {"mask": "causal", "window": 2}
    undeclared: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"an undeclared window: positions attend to those less than {window} away only": {"window": window}
        for window in (1, 2, 3, 4)
    }
    misreadings: ClassVar[tuple[Misreading, ...]] = (
        Misreading(
            "ignored_window",
            "the window is ignored: positions attend to distant ones too",
            lambda layer: {"window": None},
            "conditional.joint",
        ),
        Misreading(
            "wide_window",
            "the window includes one position more than declared",
            lambda layer: {"window": None if layer.window is None else layer.window + 1},
            "conditional.joint",
        ),
    )

    def shows(self, layer: AttentionLayer, variant: AttentionLayer) -> bool:
        """Return whether the two layers make different positions visible."""
        return not np.array_equal(layer.visible, variant.visible)

    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated `window`."""
        remedy = "pass a distance: positions that are nearer are visible; or None"
        return {"window": check_integer("window", layer.window, 1, remedy)}

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return field values for random layers."""
        return [{"window": window} for window in (1, 2, 3) if window < layer.seq_len]
