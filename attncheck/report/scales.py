"""Rows of effects on a shared scale, as responsive HTML."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from matplotlib.ticker import MaxNLocator

from attncheck._lib.text import counted
from attncheck.evidence.text import expected
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.names import layer_name
from attncheck.records.schema import Result
from attncheck.records.tallies import Tally
from attncheck.records.text import in_mdes, interval, reads

# Maximum number of cases per scale, and of marks per row.
_SHOWN, _MARKS = 8, 12
# Margin as a share of the scale.
_ROOM = 0.04
# Wider ranges are labelled at powers of ten.
_WIDE = 10.0
# Largest deviation shown, in units of the minimum detectable effect.
_FARTHEST = 1e4


@dataclasses.dataclass(frozen=True)
class Mark:
    """An effect with its interval, as numbers or as places on a scale in percent."""

    low: float
    at: float
    high: float
    wrong: bool


@dataclasses.dataclass(frozen=True)
class PlotRow:
    """A labelled row: marks, text, and the band of undetectable effects."""

    label: str
    said: str
    marks: tuple[Mark, ...]
    band: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class PlotScale:
    """Rows with one scale, (percent, label) ticks, and the place of the expected value."""

    caption: str
    label: str
    rows: tuple[PlotRow, ...]
    ticks: tuple[tuple[float, str], ...]
    declared: float | None = None


@dataclasses.dataclass(frozen=True)
class _Axis:
    """A map of numbers to percent of a scale."""

    low: float
    high: float
    bend: Callable[[float], float] = float

    def place(self, value: float) -> float:
        """Return the place of a value, clipped to the scale."""
        low, high = self.bend(self.low), self.bend(self.high)
        share = (self.bend(min(max(value, self.low), self.high)) - low) / (high - low)
        return round(100.0 * share, 2)

    def mark(self, mark: Mark) -> Mark:
        """Return a mark in percent."""
        return Mark(self.place(mark.low), self.place(mark.at), self.place(mark.high), mark.wrong)

    def ticks(self, values: Iterable[float], words: Callable[[float], str]) -> tuple[tuple[float, str], ...]:
        """Return labels at those values that lie on the scale."""
        return tuple((self.place(value), words(value)) for value in values if self.low <= value <= self.high)


def by_case(tally: Tally) -> PlotScale | None:
    """Return a check's effects on its most suspicious cases, violated first, with bands up to the MDE."""
    shown = [each for each in tally.worst if _finite(each)][:_SHOWN]
    if not shown:
        return None
    ratio = all(each.null_effect == 1.0 and (each.low or 0.0) > 0.0 for each in shown)
    bands = [_promise(each, ratio) for each in shown]
    ends = [end for band in bands if band for end in band]
    values = [
        value for each in shown for value in (each.effect, each.low, each.high, each.null_effect) if value is not None
    ]
    axis = _axis([*values, *ends], math.log if ratio else float)
    rows = tuple(
        PlotRow(layer_name(each.case), interval(each), (axis.mark(_mark(each)),), _placed(axis, band))
        for each, band in zip(shown, bands, strict=True)
    )
    left = tally.examined - len(shown)
    more = f"; {counted(left, 'other')} not shown" if left else ""
    null, what = shown[0].null_effect, f"{reads(shown[0])}, {expected(shown[0])}, by case"
    caption = f"{what} with 99% intervals{more}. Shaded: too small to be detected"
    return PlotScale(caption, "", rows, _round_ticks(axis), None if null is None else axis.place(null))


def by_check(groups: Sequence[tuple[str, Sequence[Result]]]) -> PlotScale:
    """Return effects of checks in MDEs, on a symmetric scale that is logarithmic beyond 1."""
    found = [[mark for each in results[:_MARKS] if (mark := _in_units(each))] for _, results in groups]
    reach = max((abs(value) for marks in found for mark in marks for value in (mark.low, mark.high)), default=0.0)
    reach = min(max(1.4, 1.1 * reach), _FARTHEST)
    axis = _Axis(-reach, reach, _bent)
    band = axis.place(-1.0), axis.place(1.0)
    rows = tuple(
        PlotRow(name, "", tuple(axis.mark(mark) for mark in marks), band)
        for (name, _), marks in zip(groups, found, strict=True)
    )
    ticks = axis.ticks([*(-(10.0**p) for p in range(4, -1, -1)), 0.0, *(10.0**p for p in range(5))], _plain)
    return PlotScale("", "in minimum detectable effects", rows, _apart(ticks, 6.0), axis.place(0.0))


def would_have_seen(rows: Sequence[tuple[str, Sequence[float], float | None]]) -> PlotScale | None:
    """Return MDEs on a logarithmic scale; rows are (label, range on single cases, pooled)."""
    known = [value for _, single, common in rows for value in (*single, common) if value]
    if not known:
        return None
    axis = _Axis(min(known) / 1.3, max(known) * 1.3, math.log)
    shown = []
    for words, single, common in rows:
        low, high = (axis.place(value) for value in (min(single), max(single)))
        at = (low + high) / 2 if common is None else axis.place(common)
        span = " to ".join(dict.fromkeys(map(percent, (min(single), max(single)))))
        together = "" if common is None else f"● {percent(common)}, "
        shown.append(
            PlotRow(words, f"{together}{span}", () if common is None else (Mark(at, at, at, False),), (low, high))
        )
    ticks = axis.ticks((m * 10.0**p for p in range(-5, 3) for m in (1, 2, 5)), percent)
    return PlotScale(
        "Minimum detectable effects, on single cases (bars) and pooled (●)",
        "minimum detectable effect",
        tuple(shown),
        _apart(ticks),
    )


def percent(share: float) -> str:
    """Return a share in percent.

    Examples
    --------
    >>> percent(0.0312), percent(1.5)
    ('3.1%', '150%')
    """
    return f"{float(f'{100.0 * share:.2g}'):g}%"


def _axis(values: Sequence[float], bend: Callable[[float], float]) -> _Axis:
    low, high = min(values), max(values)
    if bend is math.log:
        room = max(high / low, 1.01) ** _ROOM
        return _Axis(low / room, high * room, bend)
    room = _ROOM * ((high - low) or 1.0)
    return _Axis(low - (room if low < 0.0 else 0.0), high + room)


def _round_ticks(axis: _Axis) -> tuple[tuple[float, str], ...]:
    """Return labels at well-separated round numbers."""
    if axis.bend is math.log and axis.high / axis.low > _WIDE:
        values = [m * 10.0**p for p in range(-12, 13) for m in (1, 2, 5)]
    else:
        values = list(MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(axis.low, axis.high))
    return _apart(axis.ticks(values, _plain))


def _apart(ticks: Sequence[tuple[float, str]], least: float = 18.0) -> tuple[tuple[float, str], ...]:
    """Drop labels that would touch the previous one."""
    kept: list[tuple[float, str]] = []
    for place, words in ticks:
        if not kept or place - kept[-1][0] >= least:
            kept.append((place, words))
    return tuple(kept)


def _finite(result: Result) -> bool:
    values = (result.effect, result.low, result.high)
    return all(value is not None and math.isfinite(value) and abs(value) < 1e12 for value in values)


def _promise(result: Result, ratio: bool) -> tuple[float, float] | None:
    """Return the band of effects that are too small to be detected."""
    mde, null = result.mde, result.null_effect
    if mde is None or null is None or not math.isfinite(mde) or (ratio and mde <= 0.0):
        return None
    other = 1.0 / mde if ratio else 2.0 * null - mde
    if result.low is not None and result.low >= 0.0 and null >= 0.0 and not ratio:
        other = max(other, 0.0)  # distances and frequencies are one-sided
    return min(mde, other), max(mde, other)


def _mark(result: Result) -> Mark:
    return Mark(result.low or 0.0, result.effect or 0.0, result.high or 0.0, result.verdict == Verdict.VIOLATED)


def _placed(axis: _Axis, band: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if band is None else (axis.place(band[0]), axis.place(band[1]))


def _in_units(result: Result) -> Mark | None:
    """Return an effect in minimum detectable effects."""
    found = [in_mdes(result, value) for value in (result.effect, result.low, result.high)]
    known = [value for value in found if value is not None]
    if len(known) < 3:
        return None
    at, *ends = known
    return Mark(min(ends), at, max(ends), result.verdict == Verdict.VIOLATED)


def _bent(value: float) -> float:
    """Map a number linearly up to one and logarithmically beyond."""
    return math.copysign(min(abs(value), 1.0) + math.log(max(abs(value), 1.0)), value)


def _plain(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
