"""ReLU attention, with an atom in outputs and a kink in mapped scores: no quadratic control."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import attncheck as ac
from attncheck.theory.limits.mixture import ScaleMixture
from attncheck.theory.rates.deviation import REPLICATES, Cells, Deviation
from attncheck.theory.rates.gap import Gap
from attncheck.theory.rates.marginal import FixedHeads, OutputEntry, ScoreEntry

RELU = ac.AttentionLayer(width=64, attention_map="relu")
LONG = ac.AttentionLayer(width=8, seq_len=28)
# Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
_LONGER = 1.75


def test_an_atom_is_what_symmetry_makes_it() -> None:
    # At every width: each of the two scores is negative with chance 1/2, independently given all but the signs.
    law = ac.finite_width_law(RELU.replace(width=3, seq_len=2, num_heads=1), size=2048)
    assert abs(law.atom() - 0.25) < _LONGER * law.atom_error() < 0.02
    wide = ac.finite_width_law(RELU, size=64)
    assert abs(wide.atom() - wide.limit.atom()) < 0.005
    for each in (law, wide):
        assert each.sf(0.0) == pytest.approx((1 - each.atom()) / 2, abs=1e-12) == each.cdf(0.0) - each.atom()


def test_noise_never_takes_more_than_the_whole_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = Cells.over(1e-3, 1e3)
    measures = np.zeros((REPLICATES, len(cells.variances)))
    measures[:, -1] = np.linspace(-0.5, -0.3, REPLICATES)
    measures[:, 1000] = -measures[:, -1]
    gap = Gap(ScaleMixture(np.ones(1), np.array([0.8]), 0.2), Deviation(cells, measures, 16, lambda: measures))
    value, error = gap.distance("kl")
    assert value >= 0.0
    assert math.isfinite(error)
    law = ac.finite_width_law(RELU, size=16)
    monkeypatch.setattr(type(law), "gap", lambda self, position: gap)
    assert law.atom() == 0.0
    assert law.sf(0.0) == law.cdf(0.0) == 0.5
    other = dataclasses.replace(gap, deviation=Deviation(cells, -measures * 4, 16, lambda: measures))
    monkeypatch.setattr(type(law), "gap", lambda self, position: other)
    assert law.atom() == 1.0
    assert law.sf(0.0) == 0.0


def test_only_kinks_are_left_to_the_draws() -> None:
    assert OutputEntry(RELU, 2).kinked
    assert FixedHeads(OutputEntry(RELU.replace(head_dim=4), 2)).kinked
    # One visible position: its score has the sign of its normal.
    assert not OutputEntry(RELU.replace(mask="causal"), 0).kinked
    assert not ScoreEntry(RELU, 0, 1).kinked
    assert not any(OutputEntry(RELU.replace(attention_map=name), 0).kinked for name in ("softmax", "linear", "sigmoid"))


@pytest.mark.parametrize(
    ("layer", "known"), [(RELU, False), (RELU.replace(seq_len=1), True), (LONG, False)], ids=["relu", "one", "long"]
)
def test_the_first_term_is_told_where_it_is_known(layer: ac.AttentionLayer, known: bool) -> None:
    for metric in ("ks", "kl"):
        distance = ac.distance(layer, metric, size=16)
        assert 0.0 <= distance.value < math.inf
        assert math.isfinite(distance.error)
        assert math.isfinite(distance.leading) == math.isfinite(distance.leading_error) == known
        assert not known or distance.leading > 1e-4
