"""The power of the checks, measured on known-wrong simulators.

A pilot sample on a stream of its own measures the effect that a fault has on every check. The check's own
family turns that effect into the chance that a run says "violated", for any exposure and profile, and into
the draws that a look would take. A sample of real looks then says whether that chance is true.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scipy import stats

from attncheck.arithmetic import own_arithmetic
from attncheck.attention import AttentionLayer
from attncheck.case import Case
from attncheck.checks.check import Check, Setting
from attncheck.checks.registry import CHECKS, PROPERTIES
from attncheck.errors import check_choice
from attncheck.evidence.budget import Budget
from attncheck.evidence.families import Association, Family, Scale
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import detection, per_look_power
from attncheck.evidence.streams import seed_sequence, stream
from attncheck.faults import EXPOSURES, FAULTS, Fault, exposing
from attncheck.processes import pool_of
from attncheck.profiles import ANCHORS, Profile, profile_named
from attncheck.subject import Subject
from attncheck.unit import Cost, Plan, Unit, chunk_of, observe, plan

#: Draws that a look is imagined to take at most, to say how many would do.
MOST_DRAWS = 100_000_000
# A pilot's p-value below which an effect is taken for real: among 500 checks that see nothing, one in 200 pilots.
_CHANCE = 1e-5
_CHECKS = {check.name: check for check in CHECKS}
# Draws of a first pilot, which settles what large effects are.
_FIRST = 6_000
# Weight entries that all verifying looks of a row may stand for, and the looks that are taken in any case.
_MOST_VERIFIED, _FEWEST_LOOKS = 2_500_000_000, 30
# A row is verified from this chance on: nobody counts on less.
_COUNTED_ON = 0.5
# The first of `ANCHORS`, like those of regimes, have draws that cost little: larger pilots are taken on as many layers.
# What they are multiplied by, and on what, where no effect is told apart from chance.
_CHEAP, _DEEP, _FACTOR = 4, ("exactness",), 8


@dataclasses.dataclass(frozen=True)
class Sight:
    """What one check makes of a fault in one layer, on a pilot sample.

    Attributes
    ----------
    fault, check_name : str
        Names, so that a sight can travel between processes.
    setting : Setting
        Layer and neurons, with everything exposed that the fault's simulator can expose.
    size : int
        Draws of the pilot.
    outcome : Outcome
        With the effect and its interval.
    """

    fault: str
    check_name: str
    setting: Setting
    size: int
    outcome: Outcome

    @property
    def check(self) -> Check:
        """The check."""
        return _CHECKS[self.check_name]

    def draws(self, profile: Profile, effect: float) -> int | None:
        """Return the draws of a look that an effect takes with the profile's power; None if beyond all bounds."""
        family = self.check.family(self.setting)
        level, power = level_of(profile), per_look_power(profile.power)
        size = family.size(_possible(family, effect), level, power, MOST_DRAWS)
        return None if size is None else size * self.check.draws_per_unit

    def chance(self, profile: Profile, size: int, effect: float) -> float:
        """Return the chance of a violated verdict in looks of `size` draws, if `effect` is the true one."""
        per_look = self._power(profile, size, effect)
        return detection(per_look, self._power(profile, 8 * size, effect))

    def _power(self, profile: Profile, size: int, effect: float) -> float:
        family = self.check.family(self.setting)
        units = max(1, size // self.check.draws_per_unit)
        return family.power(_possible(family, effect), units, level_of(profile))

    @property
    def told_apart(self) -> bool:
        """Whether the effect is more than chance, though hundreds of checks were measured."""
        inside = self.outcome.low <= self.outcome.null_effect <= self.outcome.high
        return self.outcome.p_value < _CHANCE and not inside

    @property
    def least_effect(self) -> float:
        """The end of the effect's interval that is nearer to what the null expects."""
        null = self.outcome.null_effect
        return self.outcome.low if abs(self.outcome.low - null) < abs(self.outcome.high - null) else self.outcome.high


@dataclasses.dataclass(frozen=True)
class Row:
    """How well a fault is seen in one layer with one exposure, by one check.

    Attributes
    ----------
    exposure : str
    sight : Sight
    size : int
        Draws of a look that the profile plans for the check; 0 where it plans none.
    chance, least_chance : float
        Chance of a violated verdict at the measured effect, and at the end of its interval that is nearest
        to what the null expects; 0 where the effect was not told apart from chance.
    needed : int or None
        Draws of a look that the measured effect takes with the profile's power; None where it was not told
        apart from chance.
    looks, seen : int
        Looks that were taken to verify, and how many of them were suspicious.
    """

    exposure: str
    sight: Sight
    size: int = 0
    chance: float = 0.0
    least_chance: float = 0.0
    needed: int | None = None
    looks: int = 0
    seen: int = 0

    @property
    def layer(self) -> AttentionLayer:
        """The layer."""
        return self.sight.setting.layer

    @property
    def look_draws(self) -> int:
        """Draws of a verifying look: those that the effect takes, or all that are planned if it takes more."""
        return self.size if self.needed is None else min(self.size, self.needed)

    @property
    def merit(self) -> tuple[float, float, float]:
        """What rows are compared by: the chance, then the fewest draws, then the size of the pilot."""
        return round(self.chance, 4), -math.inf if self.needed is None else -self.needed, self.sight.size


@dataclasses.dataclass(frozen=True)
class Entry:
    """One fault with one exposure: a row per layer and check for each profile, the best of the last one verified.

    Attributes
    ----------
    fault, exposure : str
    rows : mapping of str to tuple of Row
        By profile; a layer without a check that could say anything has no row.
    """

    fault: str
    exposure: str
    rows: Mapping[str, tuple[Row, ...]]

    def best(self, profile: str) -> Row | None:
        """Return the row in which the profile sees the fault best."""
        return max(self.rows[profile], key=lambda row: row.merit, default=None)

    def sure(self, profile: str, power: float) -> bool:
        """Return whether the pilot settles that the profile sees the fault with a chance of `power`."""
        row = self.best(profile)
        return row is not None and row.least_chance >= power

    def told_apart(self, profile: str) -> bool:
        """Return whether any check sees an effect beyond chance."""
        return any(row.sight.told_apart for row in self.rows[profile])

    def chance(self, profile: str) -> float:
        """Return the chance of a violated verdict by the best check alone: a run has at least this one."""
        row = self.best(profile)
        return 0.0 if row is None else row.chance


def level_of(profile: Profile) -> float:
    """Return the level of one look in a run of the profile with the usual budget."""
    return Budget().level((len(profile.layers) + profile.examples) * len(CHECKS))


def measure(
    fault: Fault,
    layers: Iterable[AttentionLayer],
    profile: Profile,
    seed: int = 0,
    properties: Iterable[str] = PROPERTIES,
    factor: int = 1,
) -> list[Sight]:
    """Take one pilot sample per layer and property, with everything exposed, and measure every check on it.

    Parameters
    ----------
    fault : Fault
    layers : iterable of AttentionLayer
        Those in which it cannot be seen are left out.
    profile : Profile
        What a look may cost.
    seed : int
        Keys streams that no run uses.
    properties : iterable of str
    factor : int
        Size of the pilot, in looks.
    """
    subject = Subject.of(fault.subject)
    sights = []
    for layer in layers:
        if fault.reason_hidden(layer):
            continue
        for name in properties:
            key = (fault.name, name, layer.to_dict(), factor)
            setting = subject.probe(layer, stream(seed, *key, role="power/probe"))
            planned = plan(Unit(name, layer), setting, _cost(profile, layer))
            if planned.sizes:
                outcomes = _look(planned, subject, seed, key, "power/pilot", factor)
                sights += [
                    Sight(fault.name, check.name, setting, factor * size, outcomes[check.name])
                    for check, size in planned.sizes.items()
                ]
    return [sight for sight in sights if sight.outcome.count]


def rows_of(sights: Iterable[Sight], exposure: str, profile: Profile) -> tuple[Row, ...]:
    """Return one row per layer of the profile and check, with what is exposed.

    Parameters
    ----------
    sights : iterable of Sight
        Of one fault.
    exposure : str
        Name in `attncheck.faults.EXPOSURES`.
    profile : Profile
    """
    units: dict[Unit, list[Sight]] = {}
    for sight in sights:
        if sight.setting.layer in profile.layers:
            units.setdefault(Unit(sight.check.property_name, sight.setting.layer), []).append(sight)
    return tuple(row for unit, members in units.items() for row in _rows_of_unit(unit, members, exposure, profile))


def exposed_as(setting: Setting, exposure: str) -> Setting:
    """Return a setting with no more than an exposure's fields."""
    fields = {*EXPOSURES[exposure], *(["masked scores"] if "scores" in EXPOSURES[exposure] else [])}
    return dataclasses.replace(setting, exposed=setting.exposed & fields)


def _rows_of_unit(unit: Unit, sights: Sequence[Sight], exposure: str, profile: Profile) -> list[Row]:
    setting = exposed_as(sights[0].setting, exposure)
    planned = plan(unit, setting, _cost(profile, unit.layer))
    return [
        _row(sight, exposure, planned.sizes.get(sight.check, 0), profile)
        for sight in sights
        if not sight.check.reason_not_examined(setting)
    ]


def _row(sight: Sight, exposure: str, size: int, profile: Profile) -> Row:
    if not sight.told_apart:
        return Row(exposure, sight, size)
    chance, least = (
        sight.chance(profile, size, effect) if size else 0.0 for effect in (sight.outcome.effect, sight.least_effect)
    )
    return Row(exposure, sight, size, chance, least, sight.draws(profile, sight.outcome.effect))


def verify(row: Row, profile: Profile, seeds: int, seed: int = 0) -> Row:
    """Take `seeds` single looks of the row's check, fewer where they cost much, and count the suspicious ones."""
    if not row.look_draws or not seeds or row.chance < _COUNTED_ON:
        return row
    seeds = min(seeds, max(_FEWEST_LOOKS, _MOST_VERIFIED // (row.look_draws * row.layer.weight_entries)))
    check, fault = row.sight.check, row.sight.fault
    subject = Subject.of(exposing(FAULTS[fault], EXPOSURES[row.exposure]))
    setting = subject.probe(row.layer, stream(seed, fault, role="power/probe"))
    chunk, level = chunk_of(row.layer, row.look_draws), level_of(profile)
    planned = Plan(setting, chunk, level, profile.power, {check: row.look_draws}, {})
    keys = [(fault, row.exposure, check.name, row.layer.to_dict(), number) for number in range(seeds)]
    outcomes = [_look(planned, subject, seed, key, "power/verify")[check.name] for key in keys]
    return dataclasses.replace(row, looks=seeds, seen=sum(outcome.p_value < level for outcome in outcomes))


def power_table(
    faults: Iterable[str] = tuple(FAULTS),
    exposures: Sequence[str] = tuple(EXPOSURES),
    profiles: Sequence[str] = ("smoke", "default"),
    seeds: int = 30,
    seed: int = 0,
    workers: int = 1,
) -> Iterator[Entry]:
    """Iterate over the table: measure every fault, plan for every exposure and profile, verify what is planned.

    Parameters
    ----------
    faults : iterable of str
        Names in `attncheck.faults.FAULTS`.
    exposures : sequence of str
        Names in `attncheck.faults.EXPOSURES`.
    profiles : sequence of str
        Profiles to plan for. The last one also says what a pilot may cost, and is verified.
    seeds : int
        Looks that verify each of the best rows, fewer where a look takes many draws; 0 for none.
    seed : int
        The table is the same for the same seed, whatever the number of workers.
    workers : int
        Processes.

    Yields
    ------
    Entry
        One per fault and exposure, faults in the order given, as soon as a fault is done.
    """
    names = [check_choice("faults", name, tuple(FAULTS)) for name in faults]
    for exposure in exposures:
        check_choice("exposures", exposure, tuple(EXPOSURES))
    for name in profiles:
        profile_named(name)
    one = functools.partial(entries_of, exposures=exposures, profiles=profiles, seeds=seeds, seed=seed)
    with contextlib.ExitStack() as stack:
        each: Iterable[list[Entry]] = map(one, names)
        if workers > 1:
            each = stack.enter_context(pool_of(workers)).map(one, names)
        for entries in each:
            yield from entries


@own_arithmetic()
def entries_of(fault: str, exposures: Sequence[str], profiles: Sequence[str], seeds: int, seed: int) -> list[Entry]:
    """Return the entries of one fault, as for `power_table`."""
    settled = {name: profile_named(name) for name in profiles}
    last = settled[profiles[-1]]
    layers, cheap = last.layers, _cheap(FAULTS[fault], last)

    def planned() -> list[Entry]:
        rows = {each: {name: rows_of(sights, each, p) for name, p in settled.items()} for each in exposures}
        return [Entry(fault, each, rows[each]) for each in exposures]

    sights = measure(FAULTS[fault], layers, dataclasses.replace(last, most_draws=_FIRST), seed)
    entries = planned()
    unsure = [entry.exposure for entry in entries if not entry.sure(last.name, last.power)]
    if unsure:
        again = _telling(sights, unsure)
        sights = [s for s in sights if s.check.property_name not in again or s.setting.layer not in cheap]
        sights += measure(FAULTS[fault], cheap, last, seed, again)
        entries = planned()
    if not all(entry.told_apart(last.name) for entry in entries):
        sights += measure(FAULTS[fault], cheap, last, seed, _DEEP, _FACTOR)
        entries = planned()
    return [_verified(entry, last, seeds, seed) for entry in entries]


def _cheap(fault: Fault, profile: Profile) -> tuple[AttentionLayer, ...]:
    """Return the first of the profile's cheap layers in which a fault can be seen."""
    cheap = (layer for layer in profile.layers if layer not in ANCHORS[_CHEAP:])
    return tuple(layer for layer in cheap if not fault.reason_hidden(layer))[:_CHEAP]


def _telling(sights: Iterable[Sight], exposures: Sequence[str]) -> list[str]:
    """Return the properties with a check that says something where no more is exposed."""
    names = {
        sight.check.property_name
        for sight in sights
        for exposure in exposures
        if not sight.check.reason_not_examined(exposed_as(sight.setting, exposure))
    }
    return [name for name in PROPERTIES if name in names]


def _verified(entry: Entry, profile: Profile, seeds: int, seed: int) -> Entry:
    while (best := entry.best(profile.name)) is not None and best.sight.told_apart and seeds:
        if not best.looks:
            after = verify(best, profile, seeds, seed)
        elif _too_few(best, profile) and best.look_draws < best.size:
            # Draws may differ in what they show, a few of them telling and most not: the mean effect asks for too few.
            after = dataclasses.replace(best, needed=2 * best.look_draws, looks=0, seen=0)
        elif _too_few(best, profile):
            # Looks of all that is planned: what they showed is the chance, and another check's may be better.
            share = best.seen / best.looks
            chance = min(best.chance, detection(share, share))
            after = dataclasses.replace(best, chance=chance, least_chance=min(best.least_chance, chance))
        else:
            break
        if after == best:
            break
        rows = tuple(after if row is best else row for row in entry.rows[profile.name])
        entry = dataclasses.replace(entry, rows={**entry.rows, profile.name: rows})
    return entry


def _too_few(row: Row, profile: Profile) -> bool:
    """Return whether the looks that verify a row were suspicious less often than planned, with 99.5% confidence."""
    return bool(stats.binom.cdf(row.seen, row.looks, per_look_power(profile.power)) < 0.005)


def _cost(profile: Profile, layer: Case) -> Cost:
    return Cost(profile.affordable(layer), level_of(profile), profile.power)


def _look(
    planned: Plan, subject: Subject, seed: int, key: Sequence[Any], role: str, factor: int = 1
) -> dict[str, Outcome]:
    rng, reference = stream(seed, *key, role=role), seed_sequence(seed, *key, role=f"{role}/reference")
    return observe(planned, list(planned.sizes), factor, subject, rng, reference)


def _possible(family: Family, effect: float) -> float:
    """Return the nearest effect that the family can plan for: measured ones may lie beyond."""
    if isinstance(family, Association):
        return min(1.0, max(-1.0, effect))
    return max(effect, 1e-9) if isinstance(family, Scale) else effect
