"""Stages of the computation, in order: what checks test, and where explanations find a deviation."""

from __future__ import annotations

DRAWS, INPUTS, KEYS, SCORES, VALUES = "draws", "inputs", "keys", "scores", "values"
WEIGHTS_OR_VALUES, AFTER = "attention weights or values", "after the scores"
GIVEN_SCORES, OUTPUTS, IN_OUTPUTS = "outputs given scores", "outputs", "seen in the outputs"
#: The stages, in order.
STAGES = (
    DRAWS,
    INPUTS,
    KEYS,
    SCORES,
    VALUES,
    WEIGHTS_OR_VALUES,
    AFTER,
    GIVEN_SCORES,
    OUTPUTS,
    IN_OUTPUTS,
)
