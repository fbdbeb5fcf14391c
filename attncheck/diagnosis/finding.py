"""Deviations of a subject from the declared layer, by stage of the computation."""

from __future__ import annotations

import dataclasses

from attncheck.evidence.plot_data import Plot

DRAWS, INPUTS, SCORES = "draws", "inputs", "scores"
WEIGHTS_OR_VALUES, AFTER, OUTPUTS = "attention weights or values", "after the scores", "seen in the outputs"
#: Stages of the computation, in order.
STAGES = (DRAWS, INPUTS, SCORES, WEIGHTS_OR_VALUES, AFTER, OUTPUTS)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A deviation of a subject from the declared layer, and the stage of the computation where it occurs.

    `plot` shows what the subject does instead, if a plot can show it.
    """

    stage: str
    text: str
    plot: Plot | None = None

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"
