"""Power of the checks against known-wrong simulators.

A pilot measures a fault's effect on each check; the check's family converts it to power and look sizes for any
exposure and profile; real looks verify the power.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import scipy

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.names import grouped
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.check import Check, Setting
from attncheck.checks.registered import load_checks, registrations
from attncheck.checks.registry import PROPERTIES, check_named, checks_of
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import Budget, detection, per_look_power
from attncheck.faults import EXPOSURES, Fault, exposing
from attncheck.faults.pairs import fault_named, paired
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import PARTS
from attncheck.layers.regimes import STANDARD
from attncheck.looks.item import Item
from attncheck.looks.look import observe
from attncheck.looks.plan import Plan, chunk_of, plan
from attncheck.looks.profiles import ANCHORS, REGIME_ANCHORS, Profile, profile_named
from attncheck.subject import Subject

#: Maximum number of draws of a planned look.
MOST_DRAWS = 100_000_000
# Significance level of a check's effect in a pilot. With 500 checks, one pilot in 200 shows an effect by chance.
_CHANCE = 1e-5


# Level of one look with the default budget.
_LEVEL = Budget().level()
# Draws of a first pilot.
_FIRST = 6_000
# Together, the looks that verify one row of the power table draw at most _MOST_VERIFIED weight entries. If that would
# allow fewer than _FEWEST_LOOKS looks, _FEWEST_LOOKS are taken.
_MOST_VERIFIED, _FEWEST_LOOKS = 2_500_000_000, 30
# Rows with a smaller chance of detection are not verified.
_COUNTED_ON = 0.5
# If no check has a significant effect, the properties in _DEEP are measured with _FACTOR times as many draws, on the
# first _CHEAP fixed layers that the fault changes.
_CHEAP, _DEEP, _FACTOR = 4, ("exactness",), 8


@dataclasses.dataclass(frozen=True)
class PilotResult:
    """Outcome of one check on a pilot, a first sample from a fault (a known-wrong simulator).

    The fault and the check are stored by name, so that the result can be pickled.
    """

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
        """Return the number of draws with which a look detects `effect` with the profile's power.

        The result is None if that number is too large to plan.
        """
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
        """Whether the effect differs from that of a correct simulator, significantly even among hundreds of checks."""
        inside = self.outcome.low <= self.outcome.null_effect <= self.outcome.high
        return self.outcome.p_value < _CHANCE and not inside

    @property
    def least_effect(self) -> float:
        """The end of the effect's interval that is nearer to the effect of a correct simulator."""
        null = self.outcome.null_effect
        return self.outcome.low if abs(self.outcome.low - null) < abs(self.outcome.high - null) else self.outcome.high


@dataclasses.dataclass(frozen=True)
class PowerRow:
    """Power of one check against a fault on one layer.

    ``exposure`` names the set of arrays that the fault returns. ``size`` is the number of draws of the planned look, 0
    if none is planned. ``chance`` is the power at the measured effect, and ``least_chance`` the power at the smallest
    effect in its interval. ``needed`` is the number of draws with which a look has the profile's power, None if it
    exceeds `MOST_DRAWS`. ``looks`` is the number of looks taken to verify the power, and ``seen`` is the number of
    those looks that were suspicious.
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
        """Number of draws of a look that verifies the power: the number needed, but at most the number planned."""
        return self.size if self.needed is None else min(self.size, self.needed)

    @property
    def merit(self) -> tuple[float, float, float]:
        """Sort key; the best row has the highest power, then the fewest draws needed, then the largest pilot."""
        return round(self.chance, 4), -math.inf if self.needed is None else -self.needed, self.sight.size


@dataclasses.dataclass(frozen=True)
class PowerEntry:
    """Power against one fault that returns one set of arrays.

    There is one row per check and layer. Only the power of the best row is verified by looks.
    """

    fault: str
    exposure: str
    rows: tuple[PowerRow, ...]

    @property
    def best(self) -> PowerRow | None:
        """The row with the highest power, which is a lower bound of the power of a run."""
        return max(self.rows, key=lambda row: row.merit, default=None)


def rows_of(
    pilots: Iterable[PilotResult], exposure: str, profile: Profile, layers: Sequence[AttentionLayer] = ()
) -> tuple[PowerRow, ...]:
    """Return one row per layer and check, from the pilots of one fault.

    `exposure` names the set of arrays that the fault returns. Only pilots on `layers` count; by default, these are the
    layers of the profile.
    """
    selected = (pilot for pilot in pilots if pilot.setting.layer in (layers or profile.layers))
    items = grouped(selected, lambda pilot: Item(pilot.check.property_name, pilot.setting.layer))
    return tuple(row for item, members in items.items() for row in _rows_of_item(item, members, exposure, profile))


def exposed_as(setting: Setting, exposure: str) -> Setting:
    """Return a setting in which the subject returns only the arrays of an exposure, a named set of arrays."""
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


def measure(
    fault: Fault,
    layers: Iterable[AttentionLayer],
    profile: Profile,
    seed: int = 0,
    properties: Iterable[str] = PROPERTIES,
    factor: int = 1,
) -> list[PilotResult]:
    """Take a pilot sample of a fault per layer and property, and return the results of all checks.

    A pilot has `factor` times the draws of a planned look. Layers on which the fault changes nothing are skipped.
    """
    subject = Subject.of(fault.subject)
    pilots = []
    for layer in layers:
        if fault.reason_hidden(layer):
            continue
        for name in properties:
            key = (fault.name, name, layer.key, factor)
            setting = subject.probe(layer, stream(seed, *key, role="power/probe"))
            planned = plan(checks_of(name), setting, profile.cost(layer))
            if planned.sizes:
                outcomes = _look(planned, subject, seed, key, "power/pilot", factor)
                pilots += [
                    PilotResult(fault.name, check.name, setting, factor * size, outcomes[check.name])
                    for check, size in planned.sizes.items()
                ]
    return [pilot for pilot in pilots if pilot.outcome.count]


def verify(row: PowerRow, profile: Profile, seeds: int, seed: int = 0) -> PowerRow:
    """Take up to `seeds` looks with the row's check, and return the row with the number of suspicious looks.

    The row is returned unchanged if its planned power is too low to be verified.
    """
    if not row.look_draws or not seeds or row.chance < _COUNTED_ON:
        return row
    seeds = min(seeds, max(_FEWEST_LOOKS, _MOST_VERIFIED // (row.look_draws * row.layer.weight_entries)))
    check, fault = row.sight.check, row.sight.fault
    subject = Subject.of(exposing(fault_named(fault), EXPOSURES[row.exposure]))
    setting = subject.probe(row.layer, stream(seed, fault, role="power/probe"))
    chunk, level = chunk_of(row.layer, row.look_draws), profile.cost(row.layer).level
    planned = Plan(setting, chunk, level, profile.power, {check: row.look_draws}, {})
    keys = [(fault, row.exposure, check.name, row.layer.key, number) for number in range(seeds)]
    outcomes = [_look(planned, subject, seed, key, "power/verify")[check.name] for key in keys]
    return dataclasses.replace(row, looks=seeds, seen=sum(outcome.p_value < level for outcome in outcomes))


@own_arithmetic()
def entries_of(
    fault: str,
    exposures: Sequence[str],
    profile: str,
    seeds: int,
    seed: int,
    checks: Sequence[str] = (),
) -> list[PowerEntry]:
    """Return the power against one fault, for each of several `exposures`, which are names of sets of returned arrays.

    The profile limits the size of the pilots. The best row of each entry is verified by up to `seeds` looks. `checks`
    are modules that register further checks, and with them faults.
    """
    load_checks(checks)
    wrong = fault_named(fault)
    properties = [item.check.property_name for item in registrations() if wrong in paired(item.check)]
    examined = dict.fromkeys([*PROPERTIES, *properties])
    preset = profile_named(profile)
    # If a fault changes no fixed layer, because none has the optional part that the fault concerns, it is examined on
    # the standard layer with that part.
    hidden = all(map(wrong.reason_hidden, (*ANCHORS, *REGIME_ANCHORS)))
    parts = [STANDARD.replace(**part.example) for part in PARTS]
    layers = tuple(layer for layer in parts if not wrong.reason_hidden(layer)) if hidden else preset.layers
    cheap = _cheap(wrong, layers)

    def planned() -> list[PowerEntry]:
        replacements = layers if hidden else ()
        return [PowerEntry(fault, exposure, rows_of(pilots, exposure, preset, replacements)) for exposure in exposures]

    pilots = measure(wrong, layers, dataclasses.replace(preset, most_draws=_FIRST), seed, examined)
    entries = planned()
    unsure = [item.exposure for item in entries if item.best is None or item.best.least_chance < preset.power]
    if unsure:
        names = _most_informative(pilots, unsure)
        again = [name for name in examined if name in names]
        pilots = [s for s in pilots if s.check.property_name not in again or s.setting.layer not in cheap]
        pilots += measure(wrong, cheap, preset, seed, again)
        entries = planned()
    if not all(any(row.sight.told_apart for row in entry.rows) for entry in entries):
        pilots += measure(wrong, cheap, preset, seed, _DEEP, _FACTOR)
        entries = planned()
    return [verified(entry, preset, seeds, seed) for entry in entries]


def _cheap(fault: Fault, layers: Iterable[AttentionLayer]) -> tuple[AttentionLayer, ...]:
    """Return up to `_CHEAP` of the given layers: the first ones that the fault changes.

    Of the fixed layers, only the first `_CHEAP` are considered, because the others are expensive.
    """
    cheap = (layer for layer in layers if layer not in ANCHORS[_CHEAP:])
    return tuple(layer for layer in cheap if not fault.reason_hidden(layer))[:_CHEAP]


def _most_informative(pilots: Iterable[PilotResult], exposures: Sequence[str]) -> set[str]:
    """Return the names of all properties with a check that can be examined under at least one of the exposures.

    An exposure is a named set of arrays; under it, the fault returns only these arrays.
    """
    return {
        pilot.check.property_name
        for pilot in pilots
        for exposure in exposures
        if not pilot.check.reason_not_examined(exposed_as(pilot.setting, exposure))
    }


def verified(entry: PowerEntry, profile: Profile, seeds: int, seed: int) -> PowerEntry:
    """Return an entry whose best row is verified.

    If the looks show less than the planned power, looks with twice as many draws are taken, up to the planned size. If
    that is still not enough, the power is lowered to what the looks show.
    """
    while (best := entry.best) is not None and best.sight.told_apart and seeds:
        if not best.looks:
            after = verify(best, profile, seeds, seed)
        elif _too_few(best, profile) and best.look_draws < best.size:
            # If few draws are informative, planning by the mean effect gives too small a size.
            after = dataclasses.replace(best, needed=2 * best.look_draws, looks=0, seen=0)
        elif _too_few(best, profile):
            # At the planned size, the share of suspicious looks is an estimate of the chance of detection.
            share = best.seen / best.looks
            chance = min(best.chance, detection(share, share))
            after = dataclasses.replace(best, chance=chance, least_chance=min(best.least_chance, chance))
        else:
            break
        if after == best:
            break
        entry = dataclasses.replace(entry, rows=tuple(after if row is best else row for row in entry.rows))
    return entry


def _too_few(row: PowerRow, profile: Profile) -> bool:
    """Return whether the share of suspicious looks is below the planned power, with 99.5% confidence."""
    return bool(scipy.stats.binom.cdf(row.seen, row.looks, per_look_power(profile.power)) < 0.005)


def _look(
    planned: Plan, subject: Subject, seed: int, key: Sequence[Any], role: str, factor: int = 1
) -> dict[str, Outcome]:
    rng, reference = stream(seed, *key, role=role), seed_sequence(seed, *key, role=f"{role}/reference")
    return observe(planned, list(planned.sizes), factor, subject, rng, reference)
