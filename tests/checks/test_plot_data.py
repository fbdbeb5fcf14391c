"""Plots of whole samples: correct for right simulators, and revealing for wrong ones."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.checks import plot_data
from attncheck.checks.laws import marginal_law
from attncheck.checks.marginals import last_position
from attncheck.checks.sample import Sample
from attncheck.evidence.plot_data import Density, Matrix, Means, joined
from attncheck.layers.attention import AttentionLayer
from attncheck.subject import Subject

LAYER = AttentionLayer(width=12, seq_len=4, num_heads=3, mask="causal")
SIZE = 4_000


def sample_of(subject: str) -> Sample:
    return Subject.of(subject).draw(LAYER, SIZE, stream(0, "tests", "portraits"))


def standard_errors(plot: Means) -> FloatArray:
    """Return the standard errors behind joint 99% intervals."""
    return np.array(plot.half_width) / special.ndtri(1.0 - 0.005 / len(plot.half_width))


def deviations(plot: Matrix) -> FloatArray:
    """Return differences in standard errors, with a zero upper triangle."""
    differences = np.zeros((max(plot.rows) + 1,) * 2)
    differences[plot.rows, plot.columns] = np.subtract(plot.observed, plot.expected) / standard_errors(plot)
    return differences


@pytest.mark.parametrize("show", [plot_data.between_heads, plot_data.between_positions])
def test_matrix_of_a_right_sample_is_as_declared(show: Any) -> None:
    plot = show(sample_of("attncheck.subject:collapsed"))
    assert np.abs(deviations(plot)).max() < 5.0
    assert np.abs(deviations(plot)).max() > 0.5


def test_heads_that_share_queries_are_told_from_each_other() -> None:
    found = deviations(plot_data.between_heads(sample_of("attncheck.faults:twin_queries")))
    pairs = found[np.tril_indices(3, -1)]
    assert (np.abs(pairs) > 10.0).any()
    assert np.abs(np.diag(found)).max() < 6.0


def test_positions_that_a_leaking_mask_lets_see_too_much_are_told() -> None:
    found = deviations(plot_data.between_positions(sample_of("attncheck.faults:leaking_mask")))
    assert np.abs(found[0, 0]) > 10.0
    assert np.abs(found[3, 3]) < 5.0


def test_values_stand_against_the_law_of_the_limit_and_that_is_no_normal_one() -> None:
    layer = AttentionLayer(width=12, seq_len=4, num_heads=1, attention_map="linear")
    law = marginal_law(layer, last_position(layer), "limit")
    rng = np.random.default_rng(3)
    chances = law.mixture.weights / law.mixture.weights.sum()
    values = rng.standard_normal(200_000) * np.sqrt(rng.choice(law.mixture.variances, 200_000, p=chances))
    plot = plot_data.against_limit(values, law)
    shares, declared = np.array(plot.observed), np.array(plot.expected)
    errors = np.sqrt(declared * (1 - declared) / values.size)
    assert np.abs(shares - declared).max() < 5 * errors.max() + 1e-5
    assert plot.std == pytest.approx(values.std(), rel=0.02)
    normal = np.diff([0.0, *special.ndtr(np.linspace(-4, 4, 33)[1:-1]), 1.0])
    assert np.abs(declared - normal).max() > 0.02
    assert declared.sum() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("name", ["whitened_scores", "score_covariances", "between_heads", "between_positions"])
def test_chunks_together_show_what_the_whole_sample_shows(name: str) -> None:
    show, sample = getattr(plot_data, name), sample_of("attncheck.faults:twin_queries")
    parts = sample.blocks(SIZE // 16)
    whole, together = show(sample), joined([show(part) for part in parts])
    assert msgspec.to_builtins(together).keys() == msgspec.to_builtins(whole).keys()
    assert together.count == whole.count
    error = standard_errors(whole)
    for one, other in ((together.observed, whole.observed), (together.expected, whole.expected)):
        assert (np.abs(np.subtract(one, other)) <= 0.5 * error + 1e-3).all()
    if isinstance(whole, Density):
        np.testing.assert_allclose(together.observed, whole.observed, atol=1e-4)
        assert max(whole.observed) > 0.01
    known = np.isclose(error, 1.0, atol=1e-3)
    np.testing.assert_allclose(standard_errors(together)[~known], error[~known], rtol=0.25)
    assert (error[~known] > 0.0).all()
