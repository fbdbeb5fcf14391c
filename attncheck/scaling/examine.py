"""Width scaling of models: measure sizes of taps at several widths and seeds, and test their exponents."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_integer, check_integers, check_number, refuse
from attncheck._lib.streams import seed_sequence
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import Budget, examine_blocks
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.scaling.exponents import exponents, means, seeds_needed, slope_weights
from attncheck.scaling.predictions import (
    PREDICTIONS,
    SHARE,
    Expectation,
    ExponentPrediction,
    TapSeries,
    check_all_fit,
    shares,
)
from attncheck.scaling.result import Widths, WidthsRow
from attncheck.scaling.taps import Make, Model, Tap

#: Default widths, seeds of the largest width per look, and tolerance of exponents.
WIDTHS = (64, 128, 256, 512, 1024)
SEEDS = 14
TOLERANCE = 0.1
_MOST_STEPS = 8
# Value that represents the logarithm of a zero size.
_ZERO = -math.inf


def examine(
    make: Make,
    widths: Sequence[int],
    expected: Expectation,
    *,
    seeds: int = SEEDS,
    steps: int = 0,
    seed: int = 0,
    false_alarm: float = 1e-6,
    tolerance: float = TOLERANCE,
) -> Widths:
    """Estimate the exponents with which taps (intermediate values) grow with the width, and test predictions.

    Parameters
    ----------
    make : callable
        ``make(width, seed)`` returns a model.
    seeds : int
        Number of models of the largest width per look. Narrower models vary more and cost less, so there are
        (largest width/width)^(1/4) times as many at a smaller width.
    steps : int
        Optimiser steps; changes are measured after each.
    false_alarm : float
        Probability of reporting any violation if all predictions hold.
    tolerance : float
        Allowed difference between an exponent and its prediction.

    Raises
    ------
    InputError
        If an argument is out of range, or no tap exists at all widths.
    """
    widths = check_integers("widths", widths, 1, "pass whole numbers, e.g. (64, 128, 256, 512, 1024)")
    slope_weights(widths)  # refuses widths that determine no exponent
    seeds = check_integer("seeds", seeds, 2, "pass at least 2, e.g. seeds=8")
    steps = check_integer("steps", steps, 0, "pass a number of steps, e.g. steps=2", _MOST_STEPS)
    tolerance = check_number("tolerance", tolerance, "pass a difference of exponents, e.g. 0.1", minimum=0.0)
    sample = _Sample(make, widths, seeds, steps, check_integer("seed", seed, 0, "pass a whole number, e.g. seed=0"))
    check_all_fit(expected, sample.measured)
    predicted = {series: expected(series) for series in sample.measured}
    planned = [series.key for series, prediction in predicted.items() if prediction is not None]
    if not planned:
        names = dict.fromkeys(series.name for series in sample.measured[:6])
        refuse("expect", "the table", "predicts nothing for any tap", f"name some of: {', '.join(names)}")
    level = Budget(false_alarm).level(len(planned))
    looks = _Looks(sample, predicted, level, tolerance)
    # `examine_blocks` takes only three looks: a fourth one, with eight times the models, would take longer than these.
    trails = examine_blocks(looks.outcomes, planned, level)
    rows = {series: looks.row(series, trails.get(series.key)) for series in sample.measured}
    results = tuple(rows.values())
    fixed, other = _fixed_scales(results, sample), _fitting(rows, tolerance)
    return Widths(tuple(widths), sample.seeds, level, false_alarm, tolerance, results, fixed, other, sample.seconds)


class _Sample:
    """Sizes of taps, from newly drawn models in each look."""

    def __init__(self, make: Make, widths: Sequence[int], seeds: int, steps: int, seed: int) -> None:
        self._make, self.widths, self._steps, self._seed = make, widths, steps, seed
        # Even more narrow models would cost little, but then the few wide models would dominate the standard errors,
        # and skewness would distort the p-values.
        self.seeds = tuple(round(seeds * (max(widths) / width) ** 0.25) for width in widths)
        self.seconds = 0.0
        narrow, wider = (self._made(width, 0, 1, "plan").taps() for width in widths[:2])
        # A tap with the same values as an inner tap is left out, unless that inner tap has different names at the two
        # widths.
        pairs = {name: (tap, wider[name]) for name, tap in narrow.items() if name in wider}
        distinct = {n: (one, two) for n, (one, two) in pairs.items() if not one.same_as or one.same_as != two.same_as}
        if not distinct:
            refuse("build", [*narrow][:3], "are absent at other widths", "use the same module names at all widths")
        tap_series = [_series(name, *taps) for name, taps in distinct.items()]
        self.measured = [dataclasses.replace(one, steps=step) for step in range(steps + 1) for one in tap_series]

    def logs(self, look: int) -> list[FloatArray]:
        """Draw models for a look, and return the log sizes of all measurements; -∞ stands for a size of zero.

        The list has one array (seeds, measurements) per width.
        """
        from attncheck._lib.progress import counted_off

        start = time.perf_counter()
        cells = [(width, k) for width, count in zip(self.widths, self.seeds, strict=True) for k in range(count)]
        sizes = [self._sizes(width, index, look) for width, index in counted_off(cells, f"models, look {look}")]
        with np.errstate(divide="ignore"):
            logs = np.log(np.array(sizes))
        self.seconds = max(self.seconds, time.perf_counter() - start)
        return np.split(logs, np.cumsum(self.seeds)[:-1])

    def weights(self) -> list[Mapping[str, FloatArray]]:
        """Return parameters by name, for a model of the first width and for one of the last width."""
        return [self._made(width, 0, 1, "plan").weights() for width in (self.widths[0], self.widths[-1])]

    def _sizes(self, width: int, index: int, look: int) -> list[float]:
        model = self._made(width, index, look, "draws")
        first = model.taps()
        tap_sizes = {(name, 0): tap.size for name, tap in first.items()}
        for step in range(1, self._steps + 1):
            model.step()
            tap_sizes |= {(n, step): tap.change_from(first[n]) for n, tap in model.taps().items() if n in first}
        sizes = [tap_sizes.get((series.name, series.steps), math.nan) for series in self.measured]
        for series, size in zip(self.measured, sizes, strict=True):
            if not math.isfinite(size):
                problem = f"is the size of {series.key} at width {width}: missing or not finite"
                refuse("build", size, problem, "fix the model, or omit that width")
        return sizes

    def _made(self, width: int, index: int, look: int, role: str) -> Model:
        drawn = seed_sequence(self._seed, "widths", width, index, look=look, role=role).generate_state(1)
        return self._make(width, int(drawn[0]))


class _Looks:
    """Looks (stages of a group-sequential test) at all measurements, with the last estimate of each."""

    def __init__(
        self,
        sample: _Sample,
        predicted: Mapping[TapSeries, ExponentPrediction | None],
        level: float,
        tolerance: float,
    ) -> None:
        self._sample, self._predicted, self._level = sample, predicted, level
        self._index = {entry.key: k for k, entry in enumerate(sample.measured)}
        bands = [(-math.inf, math.inf) if entry is None else (entry.low, entry.high) for entry in predicted.values()]
        low, self._largest = np.array(bands).T
        self._low, self._high = low - tolerance, self._largest + tolerance
        self._mixed = np.array([entry is not None and entry.mixed for entry in predicted.values()])
        self._last: dict[str, _Estimate] = {}

    def outcomes(self, look: int, factor: int, names: Iterable[str]) -> Mapping[str, Outcome]:
        """Draw a look and return the outcomes of the named measurements."""
        estimates = self._estimates(self._sample.logs(look))
        self._last |= estimates if look == 1 else {name: estimates[name] for name in names}
        # Looks need only p-values, so the effects are set to 0; the rows of the result contain the estimates.
        return {name: Outcome(estimates[name].p_value, 0.0, 0.0, 0.0, 0.0, 0) for name in names}

    def _estimates(self, logs: Sequence[FloatArray]) -> dict[str, _Estimate]:
        """Return the estimates of all measurements; `logs` has one array (seeds, measurements) per width."""
        widths, level = self._sample.widths, self._level
        zeros = np.mean(np.concatenate(logs) == _ZERO, axis=0)
        drawn = [np.where(zeros > 0.0, 0.0, array) for array in logs]
        power = exponents(drawn, widths)
        # Divide sizes by n^b with the largest predicted exponent b; predicted parts of mixed sizes then have exponents
        # -1/2 and 0.
        known = np.where(np.isfinite(self._largest), self._largest, 0.0)
        rest = [array - known * math.log(width) for array, width in zip(drawn, widths, strict=True)]
        share = shares(rest, widths)
        # The share of the growing part also rises if other parts decrease. A violation therefore requires both a large
        # share and an exponent above the prediction.
        both = np.maximum(power.p_values(high=self._largest), share.p_values(high=SHARE))
        above = np.where(self._mixed, both, power.p_values(high=self._high))
        p_values = np.minimum(np.minimum(power.p_values(low=self._low), above), 1.0)
        half = power.half_widths(level)
        numbers = [power.values, power.values - half, power.values + half, power.errors, power.freedom]
        numbers += [share.values, share.values + share.half_widths(level)]
        columns = np.where(zeros > 0.0, np.nan, numbers).T
        sizes = np.where(zeros > 0.0, means([np.exp(array) for array in logs]), np.exp(means(drawn))).T
        statistics = zip(zeros, sizes, np.where(zeros > 0.0, 1.0, p_values), columns, strict=True)
        return {
            name: _Estimate(float(zero), tuple(map(float, size)), float(p_value), *map(float, column))
            for name, (zero, size, p_value, column) in zip(self._index, statistics, strict=True)
        }

    def row(self, series: TapSeries, trail: Trail | None) -> WidthsRow:
        """Return the result of one measurement."""
        estimate, prediction = self._last[series.key], self._predicted[series]
        verdict = self._verdict(series, trail)
        return WidthsRow(
            **vars(series),
            predicted="" if prediction is None else str(prediction),
            low_predicted=None if prediction is None else _known(prediction.low),
            high_predicted=None if prediction is None else prediction.high,
            exponent=_known(estimate.value),
            low=_known(estimate.low),
            high=_known(estimate.high),
            share=_known(estimate.share) if prediction is not None and prediction.mixed else None,
            sizes=estimate.sizes,
            verdict=verdict,
            p_values=() if trail is None else trail.p_values,
            seeds_needed=self._seeds_needed(series) if verdict is Verdict.INCONCLUSIVE else None,
            notes=_notes(series, estimate),
        )

    def _verdict(self, series: TapSeries, trail: Trail | None) -> Verdict:
        estimate, k = self._last[series.key], self._index[series.key]
        if trail is None or estimate.zeros:
            return Verdict.NOT_EXAMINED
        if trail.verdict is not Verdict.CONSISTENT:
            return trail.verdict
        bounded = estimate.high <= self._high[k] or (self._mixed[k] and estimate.share_high <= SHARE)
        return Verdict.CONSISTENT if bounded and estimate.low >= self._low[k] else Verdict.INCONCLUSIVE

    def _seeds_needed(self, series: TapSeries) -> int | None:
        """Return the value of the option `seeds` that would make an interval short enough for a verdict, or None."""
        estimate, k, seeds = self._last[series.key], self._index[series.key], min(self._sample.seeds)
        margin = float(min(abs(estimate.value - self._low[k]), abs(self._high[k] - estimate.value)))
        needed = [seeds_needed(margin, estimate.error, estimate.freedom, seeds, self._level)]
        if self._mixed[k] and estimate.share < SHARE:
            needed.append(math.ceil(seeds * ((estimate.share_high - estimate.share) / (SHARE - estimate.share)) ** 2))
        known = [number for number in needed if number is not None]
        return max(min(known), seeds + 1) if known else None


@dataclasses.dataclass(frozen=True)
class _Estimate:
    """Estimate of one measurement in one look.

    `value` is the exponent and `low` to `high` its interval. `zeros` is the fraction of models in which the size is
    zero. If it is positive, `p_value` is 1, and all fields after `p_value` are NaN.
    """

    zeros: float
    sizes: tuple[float, ...]
    p_value: float
    value: float
    low: float
    high: float
    error: float
    freedom: float
    share: float
    share_high: float


def _series(name: str, narrow: Tap, wider: Tap) -> TapSeries:
    grows = narrow.values.size != wider.values.size
    rescaled = narrow.rescaled or wider.rescaled  # at one of the widths, the factor may be 1
    return TapSeries(name, narrow.what, narrow.kind, grows, rescaled, narrow.note or wider.note)


def _notes(series: TapSeries, estimate: _Estimate) -> tuple[str, ...]:
    notes = []
    if estimate.zeros == 1.0:
        notes.append("no change beyond rounding" if series.steps else "zero by design")
    elif estimate.zeros:
        notes.append(f"zero in {estimate.zeros:.0%} of models")
    if series.note:
        notes.append(series.note)
    if series.kind == "norm" and not series.steps:
        notes.append("after a norm: size independent of its input")
    return tuple(notes)


def _fixed_scales(rows: Sequence[WidthsRow], sample: _Sample) -> tuple[float, ...]:
    """Return the standard deviations of matrices with two growing axes that do not change with the width.

    The result is empty unless a violated tap is the output of such a matrix. Otherwise, a later factor may compensate
    for the constant standard deviation.
    """
    violated = {row.name for row in rows if row.verdict is Verdict.VIOLATED and not row.steps}
    narrow, wide = sample.weights() if violated else ({}, {})
    shapes = {name: zip(narrow[name].shape, wide[name].shape, strict=False) for name in narrow if name in wide}
    hidden = [name for name, pairs in shapes.items() if sum(one != two for one, two in pairs) > 1]
    fixed = [name for name in hidden if abs(_scale_exponent(narrow[name], wide[name], sample.widths)) < TOLERANCE]
    explained = any(name.rpartition(".")[0] in violated for name in fixed)
    return tuple(float(wide[name].std()) for name in fixed) if explained else ()


def _fitting(rows: Mapping[TapSeries, WidthsRow], tolerance: float) -> str:
    """Return the name of a prediction in `PREDICTIONS` that fits all sizes at initialisation.

    The result is "" if there is no such prediction, or if no size at initialisation violates the tested one.
    """
    initial = {series: row for series, row in rows.items() if not series.steps}
    if not any(row.verdict is Verdict.VIOLATED for row in initial.values()):
        return ""
    for name, predict in PREDICTIONS.items():
        if not any(_contradicts(row, predict(series), tolerance) for series, row in initial.items()):
            return name
    return ""


def _contradicts(row: WidthsRow, prediction: ExponentPrediction | None, tolerance: float) -> bool:
    if prediction is None or row.low is None or row.high is None:
        return False
    return row.low > prediction.high + tolerance or row.high < prediction.low - tolerance


def _scale_exponent(narrow: FloatArray, wide: FloatArray, widths: Sequence[int]) -> float:
    """Return the exponent of a matrix's standard deviation between the first and last width; NaN for a constant.

    `narrow` and `wide` are the matrix at these widths.
    """
    first, last = float(narrow.std()), float(wide.std())
    return math.log(last / first) / math.log(widths[-1] / widths[0]) if min(first, last) > 0.0 else math.nan


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
