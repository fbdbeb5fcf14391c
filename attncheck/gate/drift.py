"""Drift: what the same check on the same layer shows now, against what it showed in the baseline."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.special import ndtr, ndtri

from attncheck.evidence.family import CONFIDENCE
from attncheck.evidence.verdicts import Verdict
from attncheck.gate.record_table import RecordTable
from attncheck.gate.result_table import FloatArray, IntArray, ResultTable

# Half widths of intervals are this many standard errors.
_QUANTILE = float(ndtri(0.5 + 0.5 * CONFIDENCE))
#: A gap that grew, or a size that fell, by less than this share is no loss of power: another number of planned
#: results moves the level a little.
SLACK = 0.1
_TEXTS = {"mde": "minimum detectable effect"}


@dataclasses.dataclass(frozen=True)
class Change:
    """A number of one check on one layer that changed; NaN stands for a gap that nothing fills."""

    what: str
    check: str
    item: str
    before: float
    now: float
    p_value: float


def moved(run: RecordTable, baseline: ResultTable, false_alarm: float) -> list[Change]:
    """Return the effects that moved by more than the errors of both allow, the most significant first.

    Effects that are consistent in both records are compared. Each distance is measured in joint standard
    errors, taken from the sides of the two intervals that face each other; Holm's procedure keeps the chance that
    anything is returned, where nothing but the draws differs, below `false_alarm`.
    """
    ours, theirs = run.common(baseline)
    passed = run.having(Verdict.CONSISTENT)[ours] & baseline.having(Verdict.CONSISTENT)[theirs]
    now, before = _numbers(run, ours[passed]), _numbers(baseline, theirs[passed])
    known = np.isfinite(now("effect") + now("low") + now("high") + before("effect") + before("low") + before("high"))
    if not known.any():
        return []
    p_values = _p_values(now, before)[known]
    from statsmodels.stats.multitest import multipletests  # slow to import

    rejected = multipletests(p_values, alpha=false_alarm, method="holm")[0]
    keys = run.keys[ours[passed]][known][rejected]
    columns = (before("effect")[known][rejected], now("effect")[known][rejected], p_values[rejected])
    return sorted(
        _changes("effect", run, keys, *columns), key=lambda change: (change.p_value, change.check, change.item)
    )


def weaker(run: RecordTable, baseline: ResultTable) -> list[Change]:
    """Return the gaps that grew, and failing that the sizes and planned powers that fell, by more than `SLACK`."""
    ours, theirs = run.common(baseline)
    both = run.examined[ours] & baseline.examined[theirs]
    now, before = _numbers(run, ours[both]), _numbers(baseline, theirs[both])
    keys = run.keys[ours[both]]
    # A record holds no infinite number: a gap that is missing is one that no departure fills.
    mdes = [np.nan_to_num(np.abs(each("mde") - each("null_effect")), nan=np.inf) for each in (before, now)]
    grew = mdes[1] > (1.0 + SLACK) * mdes[0]
    fell = now("size") < (1.0 - SLACK) * before("size")
    planned = 1.0 - now("power") > (1.0 + SLACK) * (1.0 - before("power"))
    found: list[Change] = []
    columns = {"mde": grew, "size": fell & ~grew, "power": planned & ~grew & ~fell}
    for name, where in columns.items():
        what = _TEXTS.get(name, name)
        found += _changes(what, run, keys[where], before(name)[where], now(name)[where], np.zeros(int(where.sum())))
    return sorted(found, key=lambda change: (change.check, change.item))


def unexamined(run: RecordTable, baseline: ResultTable) -> list[tuple[str, str, str]]:
    """Return check, unit and reason of what the baseline examined and the run planned but did not examine."""
    ours, theirs = run.common(baseline)
    lost = ours[baseline.examined[theirs] & ~run.examined[ours]]
    reasons = [run.reasons[index] for index in run.why[lost]]
    return sorted((*pair, reason) for pair, reason in zip(run.names.pairs(run.keys[lost]), reasons, strict=True))


def by_check(changes: Iterable[Change]) -> dict[str, list[Change]]:
    """Return changes grouped by check, in the order in which the checks come first."""
    grouped: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        grouped[change.check].append(change)
    return dict(grouped)


def _numbers(record_table: ResultTable, where: IntArray) -> Callable[[str], FloatArray]:
    return lambda name: record_table.numbers[name][where]


def _p_values(now: Callable[[str], FloatArray], before: Callable[[str], FloatArray]) -> FloatArray:
    rose = now("effect") > before("effect")
    ours = np.where(rose, now("effect") - now("low"), now("high") - now("effect"))
    theirs = np.where(rose, before("high") - before("effect"), before("effect") - before("low"))
    distance, error = np.abs(now("effect") - before("effect")), np.hypot(ours, theirs) / _QUANTILE
    # Without any error a difference is one for certain, and equal numbers are none.
    certain = np.where(distance > 0.0, np.inf, 0.0)
    return np.asarray(2.0 * ndtr(-np.divide(distance, error, out=certain, where=error > 0.0)))


def _changes(
    what: str, run: RecordTable, keys: IntArray, before: FloatArray, now: FloatArray, p_values: FloatArray
) -> list[Change]:
    columns: Sequence[list[float]] = [column.tolist() for column in (before, now, p_values)]
    return [
        Change(what, *pair, *row) for pair, row in zip(run.names.pairs(keys), zip(*columns, strict=True), strict=True)
    ]
