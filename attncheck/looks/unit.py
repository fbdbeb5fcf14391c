"""A unit of work: one property on one layer. Planned first, then examined look by look."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.check import AnyCheck, Setting
from attncheck.checks.claims import CLAIMS, LARGER
from attncheck.checks.literal import LiteralReference
from attncheck.checks.programs.reference import ProgramReference
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.checks.reference import Reference
from attncheck.checks.registry import checks_of, property_key
from attncheck.checks.sample import Sample
from attncheck.evidence.blocks import block_of
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import examine, per_look_power
from attncheck.evidence.summaries import to_record
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.layers.case import Case
from attncheck.looks.held import Held
from attncheck.records.schema import Planned, Result
from attncheck.subject import Subject

# Entries of the arrays of a chunk: 16 MiB each.
_CHUNK_ENTRIES = 2**21
_FEWEST_DRAWS, _MOST_DRAWS = 64, 2**16
_CALL_DRAWS = 256
# Departures that an effect must amount to for it to be more than the trace of another one.
_CLEAR = 1.0


@dataclasses.dataclass(frozen=True)
class Unit:
    """One property on one layer or program.

    Attributes
    ----------
    property_name : str
        Name in `attncheck.checks.registry.PROPERTIES`.
    case : AttentionLayer or ProgramCase
    role : str
        Part of the key of its streams; shrinking uses streams of its own.
    only : str
        Name of the one check that is examined; all of the property if empty.
    """

    property_name: str
    case: Case
    role: str = "draws"
    only: str = ""

    @property
    def checks(self) -> tuple[AnyCheck, ...]:
        """Return what is examined."""
        return tuple(check for check in checks_of(self.property_name) if self.only in ("", check.name))

    @property
    def stream_key(self) -> tuple[str, str]:
        """Return what its streams are keyed by: the keys of property and case."""
        return property_key(self.property_name), self.case.key

    @property
    def id(self) -> str:
        """Return ``property@case key``."""
        return f"{self.property_name}@{self.case.key}"

    def result_id(self, check: AnyCheck) -> str:
        """Return ``check name@case key``."""
        return f"{check.name}@{self.case.key}"

    def planned(self) -> list[Planned]:
        """Return every result that this unit owes."""
        return [Planned(self.result_id(check), self.id, check.name) for check in self.checks]

    def result_key(self, check: AnyCheck) -> str:
        """Return ``check key@case key``: what a result is known by in digests and comparisons."""
        return f"{check.key}@{self.case.key}"


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the looks of one unit may take, and what they must give.

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
    """What one unit will do, decided before any look.

    Attributes
    ----------
    setting : Setting or ProgramSetting
    chunk : int
        Draws that are asked for and worked on at a time, so that memory is bounded.
    level : float
        Level of one look.
    power : float
        Power of one look that sizes are planned for.
    sizes : dict of Check to int
        Draws that each check takes in a look, in whole chunks; enough to catch its departure.
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
    def block(self) -> int:
        """Draws that make one number where weights of other laws are held to literal draws."""
        return min(self.chunk, block_of(max(self.sizes.values(), default=0)))


def plan(unit: Unit, setting: Setting | ProgramSetting, cost: Cost) -> Plan:
    """Return the plan of a unit: which checks are examined, and on how many draws.

    Parameters
    ----------
    unit : Unit
    setting : Setting
        From `Subject.probe`.
    cost : Cost
    """
    per_look = per_look_power(cost.power)
    sizes: dict[AnyCheck, int] = {}
    excused: dict[str, str] = {}
    for check in unit.checks:
        if cost.affordable < check.fewest_draws:
            excused[check.name] = _too_expensive("any law of one number per draw", cost.affordable, setting)
            continue
        reason = check.reason_not_examined(setting)
        if reason:
            excused[check.name] = reason
            continue
        size = check.look_size(setting, cost.level, per_look, cost.affordable)
        if size is None:
            excused[check.name] = _too_expensive(check.departure.text, cost.affordable, setting)
        else:
            sizes[check] = size
    most = max(sizes.values(), default=0)
    calls = max((check.calls for check in sizes), default=1)
    # Calls long enough to hold what repeats within one.
    chunk = min(chunk_of(setting.case, most), max(most // calls, min(most, _CALL_DRAWS)))
    # What others of the unit draw anyway is taken too, as long as the data stay small.
    taken = {check: min(most, max(size, chunk)) for check, size in sizes.items()}
    whole = {check: min(-(-size // chunk) * chunk, most) for check, size in taken.items()}
    return Plan(setting, chunk, cost.level, per_look, whole, excused)


def _too_expensive(what: str, affordable: int, setting: Setting | ProgramSetting) -> str:
    draws = "one draw" if affordable == 1 else f"{affordable} draws"
    of_program = isinstance(setting, ProgramSetting)
    this, smaller = ("program", "") if of_program else ("layer", "a smaller width or seq_len, or ")
    where = f"the {draws} that a look on this {this} may take"
    return f"{what} takes more than {where}: {smaller}{LARGER}"


def chunk_of(case: Case, most: int) -> int:
    """Return how many of `most` draws are worked on at a time."""
    return min(most, _MOST_DRAWS, max(_FEWEST_DRAWS, _CHUNK_ENTRIES // case.stored_entries))


def observe(
    planned: Plan,
    checks: Sequence[AnyCheck],
    factor: int,
    subject: Subject,
    rng: np.random.Generator,
    seed: np.random.SeedSequence,
) -> dict[str, Outcome]:
    """Take one look: draw chunk after chunk, gather what each check measures, and test it.

    Parameters
    ----------
    planned : Plan
    checks : sequence of Check
        Those that are still undecided.
    factor : int
        How many times the planned size.
    subject : Subject
    rng : numpy.random.Generator
        The subject's stream of this look.
    seed : numpy.random.SeedSequence
        The reference's stream of this look.
    """
    setting = planned.setting
    size = {check: planned.sizes[check] * factor for check in checks}
    total = max(size.values())
    data = {check: Held(check, setting) for check in checks}
    pictures: dict[AnyCheck, dict[str, Any]] = {}
    for start, child in zip(range(0, total, planned.chunk), seed.spawn(-(-total // planned.chunk)), strict=True):
        count = min(planned.chunk, total - start)
        active = [check for check in checks if start < size[check]]
        sample = subject.draw_as(setting, count, rng)
        reference = _reference(planned, sample, child, frozenset(check.compares for check in active))
        for check in active:
            with _named(check, subject, setting):
                data[check].add(check.measure(sample, reference))
                if start == 0 and check.picture is not None:  # a chunk is enough to look at
                    pictures[check] = check.picture(sample)
    outcomes = {check: _tested(check, subject, setting, held) for check, held in data.items()}
    return {
        check.name: dataclasses.replace(outcome, picture=pictures.get(check, outcome.picture))
        for check, outcome in outcomes.items()
    }


def _reference(
    planned: Plan, sample: Sample | ProgramSample, seed: np.random.SeedSequence, wanted: frozenset[str]
) -> Reference | ProgramReference:
    """Return what draws of the subject are compared with."""
    setting, size = planned.setting, len(sample)
    if isinstance(setting, ProgramSetting):
        return ProgramReference(setting.case, size, setting.coordinates, seed, wanted)
    if setting.weights.gaussian or not isinstance(sample, Sample):
        return Reference(setting.layer, size, setting.coordinates, seed, wanted)
    known = (setting.layer, size, setting.coordinates, seed, wanted)
    return LiteralReference(*known, laws=setting.weights, like=sample, block=planned.block)


def _tested(check: AnyCheck, subject: Subject, setting: Setting | ProgramSetting, held: Held) -> Outcome:
    with _named(check, subject, setting):
        return held.outcome()


@contextlib.contextmanager
def _named(check: AnyCheck, subject: Subject, setting: Setting | ProgramSetting) -> Iterator[None]:
    """Say whose numbers, on which layer, no statistic can be made of."""
    try:
        yield
    except (InputError, np.linalg.LinAlgError, FloatingPointError) as error:
        problem = f"cannot use what {subject.name} returned on {setting.case.describe()}: {error}"
        remedy = "" if isinstance(error, InputError) else "; mend the simulator"
        raise InputError(f"check={check.name}: {problem}{remedy}") from error


def run_unit(unit: Unit, subject: Subject, seed: int, cost: Cost) -> list[Result]:
    """Plan a unit, examine it, and return one result per check of its property.

    Every random number comes from streams keyed by (seed, property, layer, look): the same arguments
    give the same digits in any process.
    """
    started = time.perf_counter()
    unsupported = subject.reason_unsupported(unit.case)
    if unsupported:
        return [excused_result(unit, check, cost, unsupported) for check in unit.checks]
    planned = probed(unit, subject, seed, cost)
    names = [check.name for check in planned.sizes]

    def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
        return take_look(unit, planned, subject, seed, look, factor, names)

    trails = examine(evaluate, names, cost.level) if names else {}
    seconds = time.perf_counter() - started
    return [
        examined_result(unit, check, cost, planned, trails[check.name], seconds)
        if check.name in trails
        else excused_result(unit, check, cost, planned.excused[check.name])
        for check in unit.checks
    ]


def probed(unit: Unit, subject: Subject, seed: int, cost: Cost) -> Plan:
    """Return the plan of a unit, after a probe of the subject on a stream of its own."""
    setting = subject.probe(unit.case, stream(seed, *unit.stream_key, role=f"{unit.role}/probe"))
    return plan(unit, setting, cost)


def take_look(
    unit: Unit, planned: Plan, subject: Subject, seed: int, look: int, factor: int, names: Sequence[str]
) -> dict[str, Outcome]:
    """Return what checks, by name, come to on the streams of one look.

    The draws of a check do not depend on which others are asked for.
    """
    checks = [check for check in planned.sizes if check.name in names]
    rng = stream(seed, *unit.stream_key, look=look, role=unit.role)
    reference = seed_sequence(seed, *unit.stream_key, look=look, role=f"{unit.role}/reference")
    return observe(planned, checks, factor, subject, rng, reference)


def examined_result(unit: Unit, check: AnyCheck, cost: Cost, planned: Plan, trail: Trail, seconds: float) -> Result:
    """Return the record of a check that was examined."""
    first, last, size = trail.outcomes[0], trail.last, planned.sizes[check]
    empty = last.count == 0
    gap = check.gap(planned.setting, size, planned.level, planned.power)
    stated = check.departure.effect(planned.setting)
    return Result(
        id=unit.result_id(check),
        key=unit.result_key(check),
        unit=unit.id,
        property=unit.property_name,
        check=check.name,
        claim=check.claim,
        kind=check.kind,
        case=unit.case.to_dict(),
        verdict=str(Verdict.NOT_EXAMINED if empty else trail.verdict),
        reason="the draws held too little that the check could use" if empty else "",
        size=size,
        affordable=cost.affordable,
        level=cost.level,
        power=cost.power,
        p_values=[] if empty else list(trail.p_values),
        effects=[outcome.effect for outcome in trail.outcomes],
        effect=last.effect,
        low=last.low,
        high=last.high,
        null_effect=last.null_effect,
        at_most=last.at_most,
        gap=gap,
        # A look may have settled for less than the check states: then it promises what it could see, and no more.
        departure=stated if check.meets(planned.setting, size, planned.level, planned.power) else gap,
        combined=trail.combined,
        continuous=check.kind == "exact" and not empty and check.family(planned.setting).continuous,
        text=check.describe(last),
        hint=check.hint_on(planned.setting),
        seconds=seconds,
        picture=None if last.picture is None else dict(last.picture),
        summary=None if empty or first.summary is None else to_record(first.summary),
    )


def excused_result(unit: Unit, check: AnyCheck, cost: Cost, reason: str) -> Result:
    """Return the record of a check that was not examined, and why."""
    return Result(
        id=unit.result_id(check),
        key=unit.result_key(check),
        unit=unit.id,
        property=unit.property_name,
        check=check.name,
        claim=check.claim,
        kind=check.kind,
        case=unit.case.to_dict(),
        verdict=str(Verdict.NOT_EXAMINED),
        reason=reason,
        size=0,
        affordable=cost.affordable,
        level=cost.level,
        power=cost.power,
        p_values=[],
        effects=[],
        effect=None,
        low=None,
        high=None,
        null_effect=None,
        gap=None,
        departure=None,
        combined=1.0,
        continuous=False,
        text="",
        hint="",
        seconds=0.0,
    )


def violated(results: Sequence[Result]) -> list[Result]:
    """Return the violated results, the most telling first.

    A fault shows in everything that is computed after it, so the earliest claim that is clearly violated says
    most about it. Among the checks of a claim, and where none is clear, the one with the smallest p-value does.
    """
    return sorted((result for result in results if result.verdict == Verdict.VIOLATED), key=_telling)


def _telling(result: Result) -> tuple[bool, bool, int, float, float, str]:
    strength = _strength(result)
    unclear = strength < _CLEAR
    claim = 0 if unclear else list(CLAIMS).index(result.claim)
    # p-values of 0 are too small to be written down: effects tell them apart.
    return result.kind == "limit", unclear, claim, max(result.p_values, default=1.0), -strength, result.check


def _strength(result: Result) -> float:
    """Return the effect in units of the departure that the check must catch."""
    if result.effect is None or result.departure is None or result.null_effect is None:
        return 0.0
    return abs(result.effect - result.null_effect) / max(abs(result.departure - result.null_effect), 1e-300)
