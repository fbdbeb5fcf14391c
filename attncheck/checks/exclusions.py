"""Exclusions of score checks for layers with optional parts.

If queries and keys are normalised, scores are not Gaussian given the keys. Rotary positions do not change the law of
keys, values and single scores given the inputs, but conditioning scores on keys then needs the keys themselves, not
only their Gram matrices.

If the scores cannot be whitened by rows and columns, `attncheck.checks.turned` whitens all visible scores of a head at
once, for a limited number of positions.
"""

from __future__ import annotations

import dataclasses

from attncheck.checks.check import Check, Setting
from attncheck.checks.claims import NOT_EXPOSED
from attncheck.checks.sample import whitens_jointly
from attncheck.layers.parts import refusing
from attncheck.layers.parts.scores import offset_variance

#: Maximum number s of positions for whitening all scores of a head jointly, which takes s⁶ operations.
MOST_POSITIONS = 16
# Checks that whiten rows and columns of scores separately.
_OF_MATRICES = {
    "scores.size": "the inputs alone do not whiten the scores",
    "scores.head_pairs": "whitened scores lack the axes along which a shared W_Q would show",
}
# Checks that take single scores to be normal given inputs and keys.
_OF_NORMALS = ("scores.marginal", "scores.spread", "scores.kurtosis", "outputs.limit_scores")


def for_parts(check: Check) -> Check:
    """Return the check, excluding layers with optional parts to which it does not apply."""

    def excluded(setting: Setting) -> str:
        return check.excluded(setting) or _reason(check, setting)

    return dataclasses.replace(check, excluded=excluded) if _concerned(check) else check


def _concerned(check: Check) -> bool:
    named = check.name in _OF_MATRICES or check.name in _OF_NORMALS
    return named or {"scores", "key_gram"} <= check.needs


def _reason(check: Check, setting: Setting) -> str:
    for part in refusing(setting.layer, "normal scores"):
        return part.refusals["normal scores"]
    if check.name in _OF_NORMALS or not whitens_jointly(setting.layer, setting.exposed):
        return ""
    rotary = setting.layer.rotary_base is not None
    hidden = "random biases" if offset_variance(setting.layer) else "hidden scores"
    cause = "rotary positions" if rotary else hidden
    if check.name in _OF_MATRICES:
        return f"{cause}: {_OF_MATRICES[check.name]}"
    if rotary and "keys" not in setting.exposed:
        return NOT_EXPOSED + "keys"
    too_many = setting.layer.seq_len > MOST_POSITIONS
    return f"{cause}: scores of more than {MOST_POSITIONS} positions are not whitened" if too_many else ""
