"""Deviations of a subject from the declared layer, by stage of the computation."""

from __future__ import annotations

import dataclasses
from typing import Any

DRAWS, INPUTS, SCORES = "draws", "inputs", "scores"
WEIGHTS_OR_VALUES, AFTER, OUTPUTS = "attention weights or values", "after the scores", "seen in the outputs"
#: Stages of the computation, in order.
STAGES = (DRAWS, INPUTS, SCORES, WEIGHTS_OR_VALUES, AFTER, OUTPUTS)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A deviation of a subject from the declared layer, and the stage of the computation where it occurs.

    `plot` shows what the subject does instead, if a plot can show it; see `attncheck.evidence.plot_data`.
    """

    stage: str
    text: str
    plot: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"
