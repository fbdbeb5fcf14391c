"""Two runs in one page: what moved between them, and by how much more than their errors allow."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

from attncheck.evidence.verdicts import Verdict
from attncheck.records.baseline import BaselineManifest, BaselineResult, read_baseline
from attncheck.records.bounded import LargestItems
from attncheck.records.gather import RunData
from attncheck.records.schema import Closing, Result, read
from attncheck.records.words import in_alternatives

#: Chance that any effect of two equal runs is said to have moved.
LEVEL = 0.01
#: Changes that are listed, and points that are drawn.
LISTED, DRAWN = 12, 400
# Standard errors in half of a 99% interval.
_QUANTILE = NormalDist().inv_cdf(0.995)
# Results beyond which only totals are compared: the effects of a run would fill the memory.
_MOST = 300_000


@dataclasses.dataclass(frozen=True, slots=True)
class BaselineEffect:
    """What is kept of a result of the baseline; the effect is NaN where a baseline keeps none."""

    verdict: str
    effect: float
    half: float


@dataclasses.dataclass
class BaselineRun:
    """What is known of a baseline.

    Attributes
    ----------
    path : Path
    manifest : BaselineManifest
    closing : Closing or None
        None if its run did not finish.
    examined, violated : int
        Examined results on single cases; violated ones, pools among them.
    results : dict of str to BaselineEffect
        Examined results by id.
    complete : bool
        Whether all examined results are there; those of very long records are not.
    """

    path: Path
    manifest: BaselineManifest
    closing: Closing | None = None
    examined: int = 0
    violated: int = 0
    results: dict[str, BaselineEffect] = dataclasses.field(default_factory=dict)
    complete: bool = True

    @property
    def verdict(self) -> str:
        """What its run ended with."""
        return "incomplete" if self.closing is None else self.closing.verdict

    def take(self, line: BaselineResult) -> None:
        """Take an examined result."""
        self.examined += not line.of
        self.violated += line.verdict == Verdict.VIOLATED
        self.complete &= len(self.results) < _MOST
        if self.complete:
            self.results[line.id] = BaselineEffect(line.verdict, *_effect(line))


def read_earlier(path: Path) -> BaselineRun:
    """Read a baseline.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    lines = read_baseline(path)
    head = next(lines)
    assert isinstance(head, BaselineManifest)
    earlier = BaselineRun(path, head)
    for line in lines:
        if isinstance(line, BaselineResult):
            earlier.take(line)
        elif isinstance(line, Closing):
            earlier.closing = line
    return earlier


@dataclasses.dataclass(frozen=True, order=True)
class Shift:
    """One result in both runs.

    Attributes
    ----------
    flipped : bool
        Whether the verdict differs.
    shift : float
        The difference of the effects in units of its standard error.
    id : str
    before : BaselineEffect
    after : Result
    """

    flipped: bool
    shift: float
    id: str
    before: BaselineEffect = dataclasses.field(compare=False)
    after: Result = dataclasses.field(compare=False)

    @property
    def earlier(self) -> str:
        """The effect in the baseline, with its interval."""
        effect, half = self.before.effect, self.before.half
        return "not kept" if math.isnan(effect) else f"{effect:.4g} ± {half:.2g}"


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """What two runs have in common and where they differ.

    Attributes
    ----------
    baseline : BaselineRun
    compared, moved, flipped : int
        Results with an effect in both runs, those that moved beyond their joint error, and those whose verdict
        changed.
    only_before, only_after : int
        Examined results of one run only.
    changes : tuple of Shift
        Changed verdicts, then effects that moved, the largest shifts first.
    points : tuple of (float, float)
        Effects before and after in units of what must be caught, of results chosen by key.
    threshold : float
        The shift beyond which an effect moved.
    complete : bool
        Whether effects were compared; those of very long records are not.
    """

    baseline: BaselineRun
    compared: int = 0
    moved: int = 0
    flipped: int = 0
    only_before: int = 0
    only_after: int = 0
    changes: tuple[Shift, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    threshold: float = math.inf
    complete: bool = True


def compare(run: RunData, baseline: BaselineRun) -> RunComparison:
    """Return the comparison of a run with a baseline, result by result.

    An effect moved if it shifted by more than the two intervals allow together, at a level shared by all
    compared results.
    """
    if run.reported > _MOST or not baseline.complete:
        return RunComparison(baseline, complete=False)
    before = dict(baseline.results)
    shifts, flipped, only_after = array("d"), 0, 0
    changes = LargestItems[Shift](LISTED)
    points = LargestItems[tuple[int, tuple[float, float]]](DRAWN)
    for after in _examined(run.path):
        earlier = before.pop(after.id, None)
        if earlier is None:
            only_after += 1
            continue
        change = Shift(earlier.verdict != after.verdict, _shift(earlier, after), after.id, earlier, after)
        shifts.append(change.shift)
        flipped += change.flipped
        changes.add(change)
        for point in _point(change):
            points.add(point)
    threshold = NormalDist().inv_cdf(1 - LEVEL / (2 * max(1, len(shifts))))
    return RunComparison(
        baseline,
        compared=len(shifts),
        moved=sum(shift > threshold for shift in shifts),
        flipped=flipped,
        only_before=len(before),
        only_after=only_after,
        changes=tuple(change for change in changes.items if change.flipped or change.shift > threshold),
        points=tuple(point for _, point in points.items),
        threshold=threshold,
    )


def _examined(path: Path) -> Iterator[Result]:
    return (line for line in read(path) if isinstance(line, Result) and line.p_values)


def _effect(result: Result | BaselineResult) -> tuple[float, float]:
    """Return the effect and half of its interval."""
    low, high = result.low or 0.0, result.high or 0.0
    return math.nan if result.effect is None else result.effect, 0.5 * (high - low)


def _shift(before: BaselineEffect, after: Result) -> float:
    """Return the difference of two effects in units of its standard error; none is none, and so is one not kept."""
    effect, half = _effect(after)
    error = math.hypot(before.half, half) / _QUANTILE
    difference = abs(effect - before.effect)
    return difference / max(error, 1e-300) if difference > 0.0 else 0.0


def _point(change: Shift) -> list[tuple[int, tuple[float, float]]]:
    """Return where to draw a change, under a key that does not look at it."""
    place = [in_alternatives(change.after, value) for value in (change.before.effect, change.after.effect)]
    if place[0] is None or place[1] is None or math.isnan(change.before.effect):
        return []
    lot = int.from_bytes(hashlib.blake2b(change.id.encode(), digest_size=8).digest(), "big")
    return [(lot, (place[0], place[1]))]
