"""Measured effects of faults on checks, and the resulting power."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from attncheck.checks.check import Check, Setting
from attncheck.checks.registry import check_named
from attncheck.evidence.budget import Budget
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import detection, per_look_power
from attncheck.faults import EXPOSURES
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.item import Item
from attncheck.looks.plan import plan
from attncheck.looks.profiles import Profile

#: Largest look considered.
MOST_DRAWS = 100_000_000
# Significance level of pilots: with 500 checks, one false effect in 200 pilots.
_CHANCE = 1e-5


# Level of one look with the default budget.
_LEVEL = Budget().level()


@dataclasses.dataclass(frozen=True)
class PilotResult:
    """One check's outcome on a pilot sample of a fault; it refers to objects by name, so that it can be pickled."""

    fault: str
    check_name: str
    setting: Setting
    size: int
    outcome: Outcome

    @property
    def check(self) -> Check:
        """The check, by its name."""
        return check_named(self.check_name)

    def draws(self, profile: Profile, effect: float) -> int | None:
        """Return the draws that detect an effect with the profile's power, or None."""
        family = self.check.family_on(self.setting)
        size = family.size(family.plannable(effect), _LEVEL, per_look_power(profile.power), MOST_DRAWS)
        return None if size is None else size * self.check.draws_per_unit

    def chance(self, size: int, effect: float) -> float:
        """Return the chance of a violated verdict if `effect` is the true effect and a look has `size` draws."""
        return detection(self._power(size, effect), self._power(8 * size, effect))

    def _power(self, size: int, effect: float) -> float:
        family = self.check.family_on(self.setting)
        items = max(1, size // self.check.draws_per_unit)
        return family.power(family.plannable(effect), items, _LEVEL)

    @property
    def told_apart(self) -> bool:
        """Whether the effect is significant among hundreds of checks."""
        inside = self.outcome.low <= self.outcome.null_effect <= self.outcome.high
        return self.outcome.p_value < _CHANCE and not inside

    @property
    def least_effect(self) -> float:
        """The end of the effect's interval nearer to the null."""
        null = self.outcome.null_effect
        return self.outcome.low if abs(self.outcome.low - null) < abs(self.outcome.high - null) else self.outcome.high


@dataclasses.dataclass(frozen=True)
class PowerRow:
    """Power of one check against a fault in one layer with one exposure.

    ``size`` is the number of draws of the planned look, 0 if none is planned. ``chance`` is the power at the measured
    effect, ``least_chance`` the power at the smallest effect in its interval. ``needed`` is the number of draws that
    suffice, None above `MOST_DRAWS`. ``looks`` counts the looks that verify the power, ``seen`` the suspicious ones.
    """

    exposure: str
    sight: PilotResult
    size: int = 0
    chance: float = 0.0
    least_chance: float = 0.0
    needed: int | None = None
    looks: int = 0
    seen: int = 0

    @property
    def layer(self) -> AttentionLayer:
        """The layer on which the pilot was taken."""
        return self.sight.setting.layer

    @property
    def look_draws(self) -> int:
        """Draws of a verifying look: those needed, at most those planned."""
        return self.size if self.needed is None else min(self.size, self.needed)

    @property
    def merit(self) -> tuple[float, float, float]:
        """Sort key: chance, then fewest draws, then pilot size."""
        return round(self.chance, 4), -math.inf if self.needed is None else -self.needed, self.sight.size


@dataclasses.dataclass(frozen=True)
class PowerEntry:
    """One fault with one exposure, and a row for each check and layer; the best row is verified."""

    fault: str
    exposure: str
    rows: tuple[PowerRow, ...]

    @property
    def best(self) -> PowerRow | None:
        """The row with the highest power."""
        return max(self.rows, key=lambda row: row.merit, default=None)

    @property
    def chance(self) -> float:
        """The best check's power, a lower bound for a run."""
        return 0.0 if self.best is None else self.best.chance


def rows_of(
    pilots: Iterable[PilotResult], exposure: str, profile: Profile, layers: Sequence[AttentionLayer] = ()
) -> tuple[PowerRow, ...]:
    """Return one row per layer and check for pilots of one fault; `layers` replace those of the profile."""
    items: dict[Item, list[PilotResult]] = {}
    for pilot in pilots:
        if pilot.setting.layer in (layers or profile.layers):
            items.setdefault(Item(pilot.check.property_name, pilot.setting.layer), []).append(pilot)
    return tuple(row for item, members in items.items() for row in _rows_of_item(item, members, exposure, profile))


def exposed_as(setting: Setting, exposure: str) -> Setting:
    """Return a setting restricted to the fields of an exposure."""
    fields = {*EXPOSURES[exposure], *(["masked scores"] if "scores" in EXPOSURES[exposure] else [])}
    return dataclasses.replace(setting, exposed=setting.exposed & fields)


def _rows_of_item(item: Item, pilots: Sequence[PilotResult], exposure: str, profile: Profile) -> list[PowerRow]:
    setting = exposed_as(pilots[0].setting, exposure)
    planned = plan(item.checks, setting, profile.cost(item.case))
    return [
        _row(pilot, exposure, planned.sizes.get(pilot.check, 0), profile)
        for pilot in pilots
        if not pilot.check.reason_not_examined(setting)
    ]


def _row(pilot: PilotResult, exposure: str, size: int, profile: Profile) -> PowerRow:
    if not pilot.told_apart:
        return PowerRow(exposure, pilot, size)
    chance, least = (
        pilot.chance(size, effect) if size else 0.0 for effect in (pilot.outcome.effect, pilot.least_effect)
    )
    return PowerRow(exposure, pilot, size, chance, least, pilot.draws(profile, pilot.outcome.effect))
