"""What is computed together, or in part, is what would be computed alone, to the digit."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck.checks.laws import _variances
from attncheck.checks.marginals import usual
from attncheck.checks.reference import Reference
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import map_scores
from attncheck.readings import Reading

LAYER = AttentionLayer(width=8, seq_len=3, num_heads=2)


@pytest.mark.parametrize("reading", ["collapsed", "limit"])
def test_marginals_of_a_layer_share_their_draws(reading: Reading) -> None:
    together = _variances(LAYER, usual(LAYER), 300, 0, reading)
    assert together.shape == (3, 300)
    for row, marginal in zip(together, usual(LAYER), strict=True):
        (alone,) = _variances(LAYER, (marginal,), 300, 0, reading)
        np.testing.assert_array_equal(row, alone)
        assert (row > 0).all()
    assert not np.allclose(together[0], together[1])


def test_a_reference_computes_what_is_wanted_on_the_same_draws() -> None:
    every = Reference(LAYER, 20, 2, np.random.SeedSequence(0)).functionals
    wanted = frozenset({"output", "score_energy"})
    some = Reference(LAYER, 20, 2, np.random.SeedSequence(0), wanted).functionals
    assert set(some) == wanted < set(every)
    for name, values in some.items():
        np.testing.assert_array_equal(values, every[name])


@pytest.mark.parametrize("seq_len", [1, 2, 8, 9, 40])
def test_weights_of_long_and_short_rows_are_a_softmax(seq_len: int) -> None:
    layer = AttentionLayer(width=8, seq_len=seq_len)
    scores = 300.0 * np.random.default_rng(0).standard_normal((5, seq_len))
    weights = map_scores(layer, scores, np.ones(seq_len, dtype=bool))
    literal = np.exp(scores - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(weights, literal / literal.sum(axis=-1, keepdims=True), rtol=1e-12)
