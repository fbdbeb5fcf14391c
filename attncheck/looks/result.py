"""Results of checks on test items, and the order of violated results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from attncheck.checks.check import AnyCheck
from attncheck.checks.claims import CLAIMS
from attncheck.evidence.summaries import to_record
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost, Plan
from attncheck.records.schema import Result

# A violation is clear if its effect, in units of the alternative, is at least this. Smaller effects may be side effects
# of another fault.
_CLEAR = 1.0


def examined_result(item: Item, check: AnyCheck, cost: Cost, planned: Plan, trail: Trail, seconds: float) -> Result:
    """Return the result of an examined check."""
    first, last, size = trail.outcomes[0], trail.last, planned.sizes[check]
    empty = last.count == 0
    mde = check.mde(planned.setting, size, planned.level, planned.power)
    effect = check.alternative.effect(planned.setting)
    reason = last.reason or "too few of the draws were usable for the check"
    return msgspec.structs.replace(
        skipped_result(item, check, cost, reason if empty else ""),
        **looks_of(trail),
        verdict=str(Verdict.NOT_EXAMINED if empty else trail.verdict),
        size=size,
        p_values=[] if empty else list(trail.p_values),
        mde=mde,
        # If the look has less than the planned power, it guarantees to detect its minimum detectable effect only.
        alternative=effect if check.meets(planned.setting, size, planned.level, planned.power) else mde,
        continuous=check.kind == "exact" and not empty and check.family_on(planned.setting).continuous,
        text=check.describe(last),
        hint=check.hint_on(planned.setting),
        seconds=seconds,
        plot=msgspec.to_builtins(last.plot),
        summary=None if empty or first.summary is None else to_record(first.summary),
        repeatable=planned.setting.repeatable,
    )


def looks_of(trail: Trail) -> dict[str, Any]:
    """Return the fields of a `Result` that describe the outcomes of its looks, without the p-values."""
    last = trail.last
    return {
        "effects": [outcome.effect for outcome in trail.outcomes],
        "effect": last.effect,
        "low": last.low,
        "high": last.high,
        "null_effect": last.null_effect,
        "at_most": last.at_most,
        "combined": trail.combined,
    }


def skipped_result(item: Item, check: AnyCheck, cost: Cost, reason: str) -> Result:
    """Return the result of a check that was not examined."""
    return unexamined(check, item.property_name, item.case.key, item.case.to_dict(), cost, reason)


def unexamined(
    check: AnyCheck, property_name: str, where: str, case: dict[str, Any], cost: Cost, reason: str
) -> Result:
    """Return the result of a check before any look; `where` is the key of the case, or the name of the pool."""
    return Result(
        id=f"{check.name}@{where}",
        item=f"{property_name}@{where}",
        property=property_name,
        check=check.name,
        claim=check.claim,
        kind=check.kind,
        case=case,
        verdict=str(Verdict.NOT_EXAMINED),
        reason=reason,
        size=0,
        affordable=cost.affordable,
        level=cost.level,
        power=cost.power,
    )


def violated(results: Sequence[Result]) -> list[Result]:
    """Return the violated results, most informative first.

    A fault affects all later computations, so the earliest clearly violated claim comes first.
    """
    return sorted((result for result in results if result.verdict == Verdict.VIOLATED), key=_most_informative)


def _most_informative(result: Result) -> tuple[bool, bool, int, float, float, str]:
    strength = _strength(result)
    unclear = strength < _CLEAR
    claims = [*CLAIMS, result.claim]  # a registered claim comes last
    claim = 0 if unclear else claims.index(result.claim)
    # If p-values underflow to 0, effects decide the order.
    return result.kind == "limit", unclear, claim, max(result.p_values, default=1.0), -strength, result.check


def _strength(result: Result) -> float:
    """Return the distance of the effect from the null, in units of the alternative's distance from the null."""
    if result.effect is None or result.alternative is None or result.null_effect is None:
        return 0.0
    return abs(result.effect - result.null_effect) / max(abs(result.alternative - result.null_effect), 1e-300)
