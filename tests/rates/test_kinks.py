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
# Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
_LONGER = 1.75


@pytest.mark.parametrize("seed", range(2))
def test_an_atom_is_what_symmetry_makes_it(seed: int) -> None:
    # At every width: each of the two scores is negative with chance 1/2, independently given all but the signs.
    law = ac.finite_width_law(RELU.replace(width=3, seq_len=2, num_heads=1), size=2048, seed=seed)
    assert abs(law.atom() - 0.25) < _LONGER * law.atom_error() < 0.02
    assert law.sf(0.0) == pytest.approx((1 - law.atom()) / 2, abs=1e-12) == law.cdf(0.0) - law.atom()


@pytest.mark.parametrize("size", [64, 1024])
def test_atoms_are_chances_and_divergences_numbers(size: int) -> None:
    law = ac.finite_width_law(RELU, size=size)
    assert abs(law.atom() - law.limit.atom()) < 0.005
    assert law.sf(0.0) == pytest.approx((1 - law.atom()) / 2, abs=1e-12)
    found = ac.distance(RELU, "kl", size=size)
    assert 0.0 <= found.value < 0.05
    assert math.isfinite(found.error)


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
    ("layer", "known"),
    [
        (RELU, False),
        (RELU.replace(seq_len=1), True),
        (ac.AttentionLayer(width=8, seq_len=28), False),
    ],
    ids=lambda value: value.describe() if isinstance(value, ac.AttentionLayer) else str(value),
)
def test_the_first_term_is_told_where_it_is_known(layer: ac.AttentionLayer, known: bool) -> None:
    for metric in ("ks", "kl"):
        found = ac.distance(layer, metric, size=16)
        assert math.isfinite(found.value)
        assert math.isfinite(found.leading) == math.isfinite(found.leading_error) == known
        assert not known or found.leading > 1e-4
