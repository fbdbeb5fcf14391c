"""Plan of a look: the number of draws of each check, and the reasons why checks are not examined.

How many of a case's draws a check uses depends only on its own property and the cost limit, so that a result can be
reproduced alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from attncheck.checks.check import AnyCheck, Setting
from attncheck.checks.claims import LARGER
from attncheck.checks.programs.sample import ProgramSetting
from attncheck.evidence.groups import block_of
from attncheck.evidence.looks import per_look_power
from attncheck.layers.case import Case
from attncheck.subject.subject import CALL_DRAWS

# Maximum number of entries in an array of the draws that are processed at a time, i.e. 16 MiB.
_CHUNK_ENTRIES = 2**21
_FEWEST_DRAWS, _MOST_DRAWS = 64, 2**16
# Number of draws that are measured together.
_CHUNK_DRAWS = 2 * CALL_DRAWS


@dataclasses.dataclass(frozen=True)
class Cost:
    """Limits of a look: maximum number of draws, significance level, and planned power at a check's alternative."""

    affordable: int
    level: float
    power: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of the looks at one case.

    Attributes
    ----------
    setting : Setting or ProgramSetting
    chunk : int
        Number of draws that are measured together. It does not depend on the sizes, so the draws of a shorter look are
        the first draws of a longer one.
    level, power : float
        Level and power of one look.
    sizes : dict of Check to int
        Number of draws of each check in a look: whole chunks, or all affordable draws.
    excused : dict of str to str
        Reasons why checks are not examined, by the check's name.
    """

    setting: Setting | ProgramSetting
    chunk: int
    level: float
    power: float
    sizes: Mapping[AnyCheck, int]
    excused: Mapping[str, str]

    @property
    def blocks(self) -> dict[str, int]:
        """Draws per block, by property, for comparisons with draws by explicit non-Gaussian matrices."""
        return {name: min(self.chunk, block_of(most)) for name, most in _most(self.sizes).items()}


def plan(checks: Iterable[AnyCheck], setting: Setting | ProgramSetting, cost: Cost) -> Plan:
    """Return the plan of checks, of one or several properties, on a case."""
    per_look = per_look_power(cost.power)
    sizes: dict[AnyCheck, int] = {}
    skipped: dict[str, str] = {}
    for check in checks:
        if cost.affordable < check.fewest_draws:
            skipped[check.name] = _too_expensive("any wrong law of one number per draw", cost.affordable, setting)
        elif reason := check.reason_not_examined(setting):
            skipped[check.name] = reason
        elif (size := check.look_size(setting, cost.level, per_look, cost.affordable)) is None:
            skipped[check.name] = _too_expensive(check.alternative.text, cost.affordable, setting)
        else:
            sizes[check] = size
    chunk = chunk_of(setting.case, min(_CHUNK_DRAWS, cost.affordable))
    full_sizes = {
        check: min(-(-size // chunk) * chunk, cost.affordable) for check, size in _shared(sizes, setting).items()
    }
    return Plan(setting, chunk, cost.level, per_look, full_sizes, skipped)


def _shared(sizes: Mapping[AnyCheck, int], setting: Setting | ProgramSetting) -> dict[AnyCheck, int]:
    """Round the sizes of checks up to whole chunks, at no cost.

    The further draws are taken anyway, for another check of the same property.
    """
    most = _most(sizes)
    raised = {}
    for check, size in sizes.items():
        largest = most[check.property_name]
        part = chunk_of(setting.case, largest)
        raised[check] = min(largest, -(-size // part) * part)
    return raised


def _most(sizes: Mapping[AnyCheck, int]) -> dict[str, int]:
    """Return the largest number of draws among the checks of each property."""
    most: dict[str, int] = {}
    for check, size in sizes.items():
        most[check.property_name] = max(size, most.get(check.property_name, 0))
    return most


def _too_expensive(effect: str, affordable: int, setting: Setting | ProgramSetting) -> str:
    draws = "one draw" if affordable == 1 else f"{affordable} draws"
    where = f"the {draws} available to a look at this {setting.case.kind}"
    smaller = "a smaller width or seq_len, or " if setting.case.kind == "layer" else ""
    return f"detecting {effect} needs more than {where}: {smaller}{LARGER}"


def chunk_of(case: Case, most: int) -> int:
    """Return how many of `most` draws are processed at a time."""
    return min(most, _MOST_DRAWS, max(_FEWEST_DRAWS, _CHUNK_ENTRIES // case.stored_entries))
