"""Rotary positions: which checks apply to layers that have them.

Given inputs, keys, values and single scores have the same law as without rotation. Conditioning on keys needs the
keys themselves; see `attncheck.checks.turned`.
"""

from __future__ import annotations

import dataclasses

from attncheck.checks.check import Check, Setting
from attncheck.checks.claims import NOT_EXPOSED

#: Maximum positions for whitening all scores of a head jointly, at a cost of s⁶ operations.
MOST_POSITIONS = 16
# Checks that whiten rows and columns of scores separately.
_OF_MATRICES = {
    "scores.size": "rotary positions: the inputs alone do not whiten the scores",
    "scores.head_pairs": "rotary positions: whitened scores lack the axes along which a shared W_Q would show",
}


def for_rotary(check: Check) -> Check:
    """Return a check that excludes rotary layers to which it does not apply."""

    def excluded(setting: Setting) -> str:
        return check.excluded(setting) or _reason(check, setting)

    return dataclasses.replace(check, excluded=excluded) if _concerned(check) else check


def _concerned(check: Check) -> bool:
    return check.name in _OF_MATRICES or {"scores", "key_gram"} <= check.needs


def _reason(check: Check, setting: Setting) -> str:
    if setting.layer.rotary_base is None:
        return ""
    if check.name in _OF_MATRICES:
        return _OF_MATRICES[check.name]
    if "keys" not in setting.exposed:
        return NOT_EXPOSED + "keys"
    too_many = setting.layer.seq_len > MOST_POSITIONS
    return f"rotary positions: scores of more than {MOST_POSITIONS} positions are not whitened" if too_many else ""
