"""Differences between a run and its baseline, result by result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from scipy.special import ndtr, ndtri

from attncheck.evidence.family import CONFIDENCE
from attncheck.evidence.verdicts import Verdict
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result

# Half-width of an interval, in standard errors.
_QUANTILE = float(ndtri(0.5 + 0.5 * CONFIDENCE))
#: Relative loss of sensitivity that is ignored, because the number of planned results has a small effect on the level.
SLACK = 0.1


@dataclasses.dataclass(frozen=True)
class Change:
    """A number of a result that differs from the baseline; ``now`` is NaN if the run has no such number."""

    what: str
    result: Result
    before: float
    now: float
    p_value: float = 0.0


def common(run: RunRecord, baseline: RunRecord) -> Iterator[tuple[Result, Result]]:
    """Yield each result that the baseline examined together with the same result of the run.

    Pools are the same only if they have the same cases.
    """
    for id, before in baseline.examined_by_id.items():
        now = run.by_id.get(id)
        if now is not None and before.case.get("of") == now.case.get("of"):
            yield before, now


def changed_results(run: RunRecord, baseline: RunRecord, false_alarm: float) -> list[Change]:
    """Return the effects that differ significantly between run and baseline, the most significant first.

    A two-sided normal test compares the effects of results that are consistent in both runs. The standard error of each
    effect comes from the half of its confidence interval on the side of the other effect. Holm's procedure bounds the
    probability of any false rejection by `false_alarm`.
    """
    passed = [pair for pair in common(run, baseline) if all(result.verdict == Verdict.CONSISTENT for result in pair)]
    p_values = {pair[1].id: p_value for pair in passed if (p_value := shift(*pair)) is not None}
    if not p_values:
        return []
    from statsmodels.stats.multitest import multipletests  # a late import, as it is slow

    rejected = multipletests(list(p_values.values()), alpha=false_alarm, method="holm")[0]
    significant = {id for id, reject in zip(p_values, rejected, strict=True) if reject}
    changes = [
        Change("effect", now, float(before.effect or 0.0), float(now.effect or 0.0), p_values[now.id])
        for before, now in passed
        if now.id in significant
    ]
    return sorted(changes, key=lambda change: (change.p_value, change.result.check, change.result.item))


def shift(before: Result, now: Result) -> float | None:
    """Return the p-value of the difference of two effects; None if one of them, or its interval, is missing."""
    numbers = [before.effect, before.low, before.high, now.effect, now.low, now.high]
    then, low, high, effect, now_low, now_high = (math.nan if number is None else number for number in numbers)
    if not math.isfinite(then + low + high + effect + now_low + now_high):
        return None
    sides = (effect - now_low, high - then) if effect > then else (now_high - effect, then - low)
    error = math.hypot(*sides) / _QUANTILE
    if error > 0.0:
        return float(2.0 * ndtr(-abs(effect - then) / error))
    # If both effects have no error, any difference is significant.
    return 0.0 if effect != then else 1.0


def weaker(run: RunRecord, baseline: RunRecord) -> list[Change]:
    """Return results that became less sensitive by more than `SLACK`.

    The minimum detectable effect, the number of draws and the power are compared.
    """
    examined = [pair for pair in common(run, baseline) if pair[1].verdict != Verdict.NOT_EXAMINED]
    changes = [change for pair in examined if (change := _weaker(*pair)) is not None]
    return sorted(changes, key=lambda change: (change.result.check, change.result.item))


def _weaker(before: Result, now: Result) -> Change | None:
    if _distance(now) > (1.0 + SLACK) * _distance(before):
        numbers = (math.nan if mde is None else mde for mde in (before.mde, now.mde))
        return Change("minimum detectable effect", now, *numbers)
    if now.size < (1.0 - SLACK) * before.size:
        return Change("size", now, before.size, now.size)
    if 1.0 - now.power > (1.0 + SLACK) * (1.0 - before.power):
        return Change("power", now, before.power, now.power)
    return None


def _distance(result: Result) -> float:
    """Return the distance of the minimum detectable effect from the null; infinite if no effect is detectable."""
    if result.mde is None or result.null_effect is None:
        return math.inf
    return abs(result.mde - result.null_effect)


def unexamined(run: RunRecord, baseline: RunRecord) -> list[Result]:
    """Return results that the baseline examined and the run did not."""
    same = (now for _, now in common(run, baseline))
    return sorted((now for now in same if now.verdict == Verdict.NOT_EXAMINED), key=lambda now: (now.check, now.item))
