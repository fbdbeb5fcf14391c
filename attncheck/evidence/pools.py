"""Pools: joint evidence of several samples on one statistic.

Scores are standardised, then weighted by their information; counts are compared with the exact law of their sum.
Sums by ``math.fsum`` do not depend on the order or grouping of the samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.evidence.families import Count
from attncheck.evidence.family import QUANTILE, Outcome, check_level, check_power
from attncheck.evidence.summaries import Events, NormalScore, Summary

#: Scores are clipped to this absolute value, so that p-values further out need not be accurate.
CLIP = 4.5
# When the law of the sum is computed, counts in the lower or upper tail of this probability are neglected.
_EXCLUDED = 1e-18


@dataclass(frozen=True)
class Pool:
    """Summaries of one statistic on several independent samples, by key.

    All are `NormalScore` or all are `Events`, with one kind of effect.

    Examples
    --------
    >>> outcome = Pool({"a": NormalScore(2.5, 100.0), "b": NormalScore(3.0, 100.0)}).outcome()
    >>> f"{outcome.p_value:.1e}", round(outcome.effect, 3), outcome.count
    ('1.0e-04', 0.275, 2)
    """

    summaries: Mapping[str, Summary]

    def __post_init__(self) -> None:
        kinds = {_kind(summary) for summary in self.summaries.values()}
        if len(kinds) != 1:
            remedy = "pool the summaries of one statistic"
            refuse("summaries", sorted(map(str, kinds)), "must be of one kind, and not empty", remedy)
        object.__setattr__(self, "summaries", dict(sorted(self.summaries.items())))

    def outcome(self) -> Outcome:
        """Return the joint outcome; `count` is the number of samples."""
        return _outcome_of_events(self._events) if self._events else _outcome_of_scores(self._scores)

    def mde(self, level: float, power: float) -> float:
        """Return the smallest common effect detected with chance `power`, in the outcome's unit, or ``math.inf``."""
        target = check_power(power, level)
        if self._events:
            trials, mean = _expected(self._events)
            return Count(mean / trials).mde(trials, level, target)
        sums = _sums(self._scores)
        if sums.information == 0.0:
            return math.inf
        critical = float(-special.ndtri(check_level(level) / (1.0 if sums.kind.one_sided else 2.0)))
        effect = (critical + sums.bias + float(special.ndtri(target))) / math.sqrt(sums.information)
        return _display(sums.kind, effect)

    @property
    def _events(self) -> list[Events]:
        return [summary for summary in self.summaries.values() if isinstance(summary, Events)]

    @property
    def _scores(self) -> list[NormalScore]:
        return [summary for summary in self.summaries.values() if isinstance(summary, NormalScore)]


@dataclass(frozen=True)
class _Sums:
    """Combination of pooled scores: normal score, information, bias and common effect.

    `kind` is one of the pooled scores, of which only `unit`, the kind of effect, is used.
    """

    kind: NormalScore
    z: float
    information: float
    bias: float
    effect: float


def _sums(scores: Sequence[NormalScore]) -> _Sums:
    weights = [math.sqrt(score.information) for score in scores]
    information = math.fsum(score.information for score in scores)
    if information == 0.0:
        return _Sums(scores[0], 0.0, 0.0, 0.0, 0.0)

    def weighed(values: Sequence[float]) -> float:
        return math.fsum(w * value for w, value in zip(weights, values, strict=True))

    root = math.sqrt(information)
    z = weighed([min(max(score.z, -CLIP), CLIP) for score in scores]) / root
    bias = weighed([score.bias for score in scores]) / root
    # A negative one-sided score means only that there is no excess, however low it is (-37 for a p-value of 1).
    effect = max(z, 0.0) / root if scores[0].one_sided else weighed([score.z for score in scores]) / information
    return _Sums(scores[0], z, information, bias, effect)


def _outcome_of_scores(scores: Sequence[NormalScore]) -> Outcome:
    sums = _sums(scores)
    if sums.information == 0.0:
        null = _display(sums.kind, 0.0)
        return Outcome(1.0, null, null, null, null, len(scores))
    beyond = sums.z if sums.kind.one_sided else max(0.0, abs(sums.z) - sums.bias)
    p_value = float(special.ndtr(-beyond)) * (1.0 if sums.kind.one_sided else 2.0)
    half = QUANTILE / math.sqrt(sums.information)
    allowed = sums.bias / math.sqrt(sums.information)
    effect, low, high, null = (
        _display(sums.kind, value) for value in (sums.effect, sums.effect - half, sums.effect + half, allowed)
    )
    return Outcome(min(1.0, p_value), effect, low, high, null, len(scores), at_most=allowed > 0.0)


def _outcome_of_events(events: Sequence[Events]) -> Outcome:
    hits = sum(batch.events for batch in events)
    trials, mean = _expected(events)
    above, below = _tails(events, hits)
    two_sided = not events[0].one_sided
    p_value = min(1.0, 2.0 * min(above, below)) if two_sided else above
    common = Count(mean / trials).test(hits, trials)  # the interval does not depend on the null
    at_most = not two_sided and mean > 0.0
    return Outcome(p_value, common.effect, common.low, common.high, mean / trials, len(events), at_most=at_most)


def _expected(events: Sequence[Events]) -> tuple[int, float]:
    """Return the total number of trials and the number of events expected under the null."""
    return sum(batch.trials for batch in events), math.fsum(batch.trials * batch.probability for batch in events)


def _tails(events: Sequence[Events], hits: int) -> tuple[float, float]:
    """Return the exact probabilities of at least, and of at most, `hits` events in total.

    The law of the total, a Poisson binomial law, is computed by convolution.
    """
    start, law = 0, np.ones(1)
    for batch in sorted(events, key=lambda one: one.trials * one.probability):
        least, chances = _binomial(batch.trials, batch.probability)
        start += least
        law = np.maximum(scipy.signal.convolve(law, chances), 0.0)
    index = hits - start
    above, below = law[max(0, index) :], law[: max(0, index + 1)]
    return min(1.0, float(above.sum())), min(1.0, float(below.sum()))


# Cached, because most cases of a pool have the same number of trials in every look.
@functools.lru_cache(maxsize=64)
def _binomial(trials: int, probability: float) -> tuple[int, FloatArray]:
    """Return the smallest count whose probability is not negligible, and the probabilities from this count on.

    The array is read-only.
    """
    least = int(scipy.stats.binom.ppf(_EXCLUDED, trials, probability)) if probability > 0.0 else 0
    most = int(scipy.stats.binom.isf(_EXCLUDED, trials, probability)) if probability > 0.0 else 0
    chances = np.asarray(scipy.stats.binom.pmf(np.arange(max(0, least), most + 1), trials, probability))
    chances.flags.writeable = False
    return max(0, least), chances


def _kind(summary: Summary) -> tuple[Any, ...]:
    """Return the kind of a summary, which all summaries of a pool share."""
    if isinstance(summary, Events):
        return "events", summary.one_sided
    return "score", summary.unit


def _display(kind: NormalScore, effect: float) -> float:
    """Return an effect in the unit in which it is displayed: logarithms of ratios become ratios."""
    if kind.unit not in ("ratio", "size"):
        return effect
    return math.exp(min(effect, 700.0))
