"""Which checks apply where all visible scores of a head are whitened at once; see `attncheck.checks.turned`.

With rotary positions, given inputs, keys, values and single scores have the same law as without rotation.
Conditioning on keys needs the keys themselves.
"""

from __future__ import annotations

import dataclasses

from attncheck.checks.check import Check, Setting
from attncheck.checks.claims import NOT_EXPOSED
from attncheck.checks.sample import whitens_jointly

#: Maximum positions for whitening all scores of a head jointly, at a cost of s⁶ operations.
MOST_POSITIONS = 16
# Checks that whiten rows and columns of scores separately.
_OF_MATRICES = {
    "scores.size": "the inputs alone do not whiten the scores",
    "scores.head_pairs": "whitened scores lack the axes along which a shared W_Q would show",
}


def for_joint_whitening(check: Check) -> Check:
    """Return a check that excludes layers whose scores are whitened jointly, if it does not apply to them."""

    def excluded(setting: Setting) -> str:
        return check.excluded(setting) or _reason(check, setting)

    return dataclasses.replace(check, excluded=excluded) if _concerned(check) else check


def _concerned(check: Check) -> bool:
    return check.name in _OF_MATRICES or {"scores", "key_gram"} <= check.needs


def _reason(check: Check, setting: Setting) -> str:
    if not whitens_jointly(setting.layer, setting.exposed):
        return ""
    rotary = setting.layer.rotary_base is not None
    cause = "rotary positions" if rotary else "scores that a window or mask hides"
    if check.name in _OF_MATRICES:
        return f"{cause}: {_OF_MATRICES[check.name]}"
    if rotary and "keys" not in setting.exposed:
        return NOT_EXPOSED + "keys"
    too_many = setting.layer.seq_len > MOST_POSITIONS
    return f"{cause}: scores of more than {MOST_POSITIONS} positions are not whitened" if too_many else ""
