"""What a look will take, decided before any: draws for each check, and why others are not examined.

All checks of a case look at the same draws. What a check takes of them follows from its own property and from what a
look may cost, whatever else is examined: a result is repeated by itself to the digit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from attncheck.checks.check import AnyCheck, Setting
from attncheck.checks.claims import LARGER
from attncheck.checks.programs.sample import ProgramSetting
from attncheck.evidence.blocks import block_of
from attncheck.evidence.looks import per_look_power
from attncheck.layers.case import Case

# Entries of the arrays of draws that are worked on together: 16 MiB each.
_CHUNK_ENTRIES = 2**21
_FEWEST_DRAWS, _MOST_DRAWS = 64, 2**16
#: Draws of a call: long enough to hold what repeats within one, and so few that a look has many calls to compare.
CALL_DRAWS = 256


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the looks at one case may take, and what they must give.

    Attributes
    ----------
    affordable : int
        Draws that one look may take.
    level : float
        Level of one look.
    power : float
        Chance of a violated verdict, at the departure that a check states, that sizes are planned for.
    """

    affordable: int
    level: float
    power: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is done on one case, decided before any look.

    Attributes
    ----------
    setting : Setting or ProgramSetting
    chunk : int
        Draws that are asked for and worked on at a time, so that memory is bounded. It does not depend on the sizes:
        a shorter look has the first draws of a longer one.
    level : float
        Level of one look.
    power : float
        Power of one look that sizes are planned for.
    sizes : dict of Check to int
        Draws that each check takes in a look, in whole chunks or all that it may; enough to catch its departure.
    excused : dict of str to str
        Check names that are not examined, and why.
    """

    setting: Setting | ProgramSetting
    chunk: int
    level: float
    power: float
    sizes: Mapping[AnyCheck, int]
    excused: Mapping[str, str]

    @property
    def blocks(self) -> dict[str, int]:
        """Draws that make one number where weights of other laws are held to literal draws, by property."""
        return {name: min(self.chunk, block_of(most)) for name, most in _most(self.sizes).items()}


def plan(checks: Iterable[AnyCheck], setting: Setting | ProgramSetting, cost: Cost) -> Plan:
    """Return which checks are examined, and on how many draws.

    Parameters
    ----------
    checks : iterable of Check
        Of one or several properties.
    setting : Setting
        From `Subject.probe`.
    cost : Cost
    """
    per_look = per_look_power(cost.power)
    sizes: dict[AnyCheck, int] = {}
    excused: dict[str, str] = {}
    for check in checks:
        if cost.affordable < check.fewest_draws:
            excused[check.name] = _too_expensive("any law of one number per draw", cost.affordable, setting)
            continue
        reason = check.reason_not_examined(setting)
        if reason:
            excused[check.name] = reason
            continue
        size = check.look_size(setting, cost.level, per_look, cost.affordable)
        if size is None:
            excused[check.name] = _too_expensive(check.alternative.text, cost.affordable, setting)
        else:
            sizes[check] = size
    chunk = chunk_of(setting.case, min(CALL_DRAWS, cost.affordable))
    whole = {check: min(-(-size // chunk) * chunk, cost.affordable) for check, size in _shared(sizes, setting).items()}
    return Plan(setting, chunk, cost.level, per_look, whole, excused)


def _shared(sizes: Mapping[AnyCheck, int], setting: Setting | ProgramSetting) -> dict[AnyCheck, int]:
    """Return the sizes, raised to what others of the property draw anyway: by parts whose data are small."""
    most = _most(sizes)
    raised = {}
    for check, size in sizes.items():
        others = most[check.property_name]
        part = chunk_of(setting.case, others)
        raised[check] = min(others, -(-size // part) * part)
    return raised


def _most(sizes: Mapping[AnyCheck, int]) -> dict[str, int]:
    """Return the largest size of each property."""
    most: dict[str, int] = {}
    for check, size in sizes.items():
        most[check.property_name] = max(size, most.get(check.property_name, 0))
    return most


def _too_expensive(what: str, affordable: int, setting: Setting | ProgramSetting) -> str:
    draws = "one draw" if affordable == 1 else f"{affordable} draws"
    where = f"the {draws} that a look on this {setting.case.kind} may take"
    smaller = "a smaller width or seq_len, or " if setting.case.kind == "layer" else ""
    return f"{what} takes more than {where}: {smaller}{LARGER}"


def chunk_of(case: Case, most: int) -> int:
    """Return how many of `most` draws are worked on at a time."""
    return min(most, _MOST_DRAWS, max(_FEWEST_DRAWS, _CHUNK_ENTRIES // case.stored_entries))
