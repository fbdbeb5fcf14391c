"""Repeats and calls against SciPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from attncheck.evidence.exchange import Calls, Repeats
from attncheck.evidence.family import Outcome


@pytest.mark.parametrize(
    ("values", "counts"), [(np.arange(7.0), [7]), (np.arange(7.0), [1] * 7), (np.full(7, 2.5), [3, 4])]
)
def test_calls_that_cannot_be_compared_say_nothing(values: np.ndarray, counts: list[int]) -> None:
    nothing = Outcome(p_value=1.0, effect=0.0, low=0.0, high=1.0, null_effect=0.0, count=0)
    assert Calls(2).test(values, np.array(counts)) == nothing


def share_of(noncentrality: float, count: int) -> float:
    return noncentrality / (noncentrality + count)


NEIGHBOURS = [np.arange(60.0).reshape(3, 20), np.arange(1000.0).reshape(2, 500), np.arange(80.0).reshape(16, 5)]


@pytest.mark.parametrize("groups", [[[1, 2], [3]], [[1, 2], [3, 4]], [[1, 1, 2, 2], [2, 3, 3]], *NEIGHBOURS])
def test_the_effect_and_interval_of_calls_agree_with_scipy(groups: Sequence[Sequence[float]]) -> None:
    sizes = [len(group) for group in groups]
    outcome, count, freedom = Calls(len(groups)).test(np.concatenate(groups), sizes), sum(sizes), len(groups) - 1
    assert Calls(len(groups)).test(np.concatenate(groups), np.array(sizes, dtype=np.uint64)) == outcome
    assert outcome.p_value == pytest.approx(stats.kruskal(*groups).pvalue, rel=1e-9)
    statistic = float(stats.kruskal(*groups).statistic)  # variance between calls, times count - 1
    odds = (count - 1) * statistic / (count - 1 - statistic)
    assert outcome.effect == pytest.approx(share_of(odds - freedom, count), rel=1e-9)
    assert (outcome.null_effect, outcome.count) == (0.0, count)
    for end, chance in ((outcome.low, 0.005), (outcome.high, 0.995)):
        if stats.chi2.sf(odds, freedom) >= chance:
            assert end == 0.0
        else:
            assert stats.ncx2.sf(odds, freedom, count * end / (1.0 - end)) == pytest.approx(chance, rel=1e-5)


@pytest.mark.parametrize("calls", [2, 4])
@pytest.mark.parametrize("share", [1e-6, 0.02, 0.3])
def test_the_power_of_calls_is_a_mixture_of_chi_squares(calls: int, share: float) -> None:
    size, level = 200, 1e-3
    half = 0.5 * size * share / (1.0 - share)
    terms = np.arange(400)
    critical = stats.chi2.isf(level, calls - 1)
    chance = float(np.sum(stats.poisson.pmf(terms, half) * stats.chi2.sf(critical, calls - 1 + 2 * terms)))
    assert Calls(calls).power(share, size, level) == pytest.approx(chance, rel=1e-6)


def test_repeats() -> None:
    marks = np.arange(1_000, dtype=np.uint64)
    assert Repeats().test(marks).p_value == 1.0
    marks[-1] = 0
    outcome = Repeats().test(marks)
    assert outcome.p_value == 0.0
    assert outcome.effect == 0.001
    assert Repeats().power(0.03, 50, 1e-3) == pytest.approx(1 - 0.97**50, rel=1e-9)
    assert Repeats().power(0.0, 50, 1e-3) == 0.0
    size = Repeats().size(0.001, 5e-4, 0.99)
    assert size is not None
    assert 0.99 <= 1 - 0.999**size < 0.991
