"""Repeats and calls: exact p-values under the null, and the power that is planned with."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attncheck.evidence.exchange import Calls, Repeats
from attncheck.evidence.streams import stream

LEVELS = (0.05, 0.01, 0.001)
FALSE_ALARM = 1e-7


def looks(count: int, share: float, replications: int) -> np.ndarray:
    """Return p-values for 16 calls of `count` draws, a share of whose variance lies between calls."""
    rng = stream(0, "tests", "calls", share)
    pattern = np.linspace(-1, 1, 16)[:, None]
    common = pattern / pattern.std() * share**0.5
    p_values = []
    for _ in range(replications):
        values = common + rng.standard_normal((16, count)) * (1 - share) ** 0.5
        p_values.append(Calls(16).test(np.exp(values.ravel()), np.full(16, count)).p_value)
    return np.array(p_values)


def test_calls_keep_their_level() -> None:
    p_values = looks(60, 0.0, 2_000)
    for level in LEVELS:
        alarms = int((p_values < level).sum())
        assert stats.binom.sf(alarms - 1, len(p_values), level) > FALSE_ALARM
    assert stats.kstest(p_values, "uniform").pvalue > FALSE_ALARM


def test_calls_have_the_planned_power() -> None:
    size = Calls(16).size(0.1, 1e-3, 0.99)
    assert size is not None
    seen = float((looks(size // 16 + 1, 0.1, 1_000) < 1e-3).mean())
    assert seen > 0.97  # ranks lose a few percent of the draws against normal values


def test_calls_of_unequal_length_and_ties() -> None:
    values = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0])
    outcome = Calls(2).test(values, np.array([3, 4]))
    assert outcome.p_value == pytest.approx(stats.kruskal(values[:3], values[3:]).pvalue, rel=0.2)
    assert outcome.low <= outcome.effect <= outcome.high


@pytest.mark.parametrize("counts", [[7], [1] * 7])
def test_calls_that_cannot_be_compared_are_not_counted(counts: list[int]) -> None:
    assert Calls(2).test(np.arange(7.0), np.array(counts)).count == 0


def test_interval_of_calls_covers() -> None:
    rng = stream(0, "tests", "calls", "cover")
    shift = np.linspace(-1, 1, 16)[:, None]
    outcomes = [Calls(16).test((shift + rng.standard_normal((16, 40))).ravel(), np.full(16, 40)) for _ in range(200)]
    middle = float(np.median([outcome.effect for outcome in outcomes]))
    covered = np.mean([outcome.low <= middle <= outcome.high for outcome in outcomes])
    assert covered > 0.9


def test_repeats() -> None:
    marks = np.arange(1_000, dtype=np.uint64)
    assert Repeats().test(marks).p_value == 1.0
    marks[-1] = 0
    outcome = Repeats().test(marks)
    assert outcome.p_value == 0.0
    assert outcome.effect == 0.001
    size = Repeats().size(0.001, 5e-4, 0.99)
    assert size is not None
    assert 0.99 <= 1 - 0.999**size < 0.991
