"""Example programs: coverage, text and limit; `simulators/test_draws.py` compares their methods."""

from __future__ import annotations

import numpy as np
import pytest

import attncheck as ac
from attncheck import InputError
from attncheck._lib.arrays import FloatArray
from attncheck.layers.program import Output, Score
from attncheck.layers.program.coverage import CoverageKind
from attncheck.layers.program.mixes import sigmoid_mix, softmax_mix
from attncheck.programs import (
    EXAMPLES,
    cross_attention,
    grouped_query_attention,
    perceptron,
    positional_attention,
    recurrent_attention,
)

# Two-sided level 1e-9 of a z-test.
QUANTILE = 6.1


def second_moments(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return E[v_i v_k] of the columns and its standard error."""
    products = values[:, :, None] * values[:, None, :]
    return products.mean(axis=0), products.std(axis=0) / len(values) ** 0.5


def scale(moments: FloatArray) -> FloatArray:
    """Return √(E v_i² E v_k²)."""
    roots = np.sqrt(np.diagonal(moments))
    return np.asarray(roots[:, None] * roots)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_line_is_proved(name: str) -> None:
    program = EXAMPLES[name]()
    covered = program.coverage()
    assert covered.has_limit
    assert covered.proved
    for node in program.nodes:
        best = {Score: CoverageKind.SCORE, Output: CoverageKind.OUTPUT}.get(type(node), CoverageKind.NETSOR)
        assert covered.of(node.name).statement is best


@pytest.mark.sampled
@pytest.mark.parametrize("name", EXAMPLES)
def test_results_and_scores_approach_the_limit(name: str) -> None:
    """Corollary 2: E[y_i y_k] at width n is off by a fraction c/n, |c| < 1 as measured at n = 16; 3 is allowed.

    Proposition 8: E[p_i p_k] at width n is off by at most (1 + 2/n)² - 1 of it, as for p_ii.
    """
    program = EXAMPLES[name]()
    draws = ac.simulate(program.at(64), 10_000, seed=1)
    moments, error = second_moments(draws.outputs[:, :, 0])
    limit = ac.simulate(program.at(64), 50_000, seed=2, method="limit")
    expected, theirs = second_moments(limit.outputs[:, :, 0])
    assert np.all(abs(moments - expected) < QUANTILE * np.hypot(error, theirs) + 3 / 64 * scale(expected))
    law = ac.limit(program)
    if not law.scores:
        assert draws.scores.shape == (10_000, 0)
        return
    expected = law.score_covariance
    moments, error = second_moments(draws.scores)
    allowed = QUANTILE * error + ((1 + 2 / 64) ** 2 - 1) * scale(expected) + law.error
    assert np.all(abs(moments - expected) < allowed)
    # Detects an error of a fifth in the standard deviation of W^Q or W^K.
    assert np.all((1.2**2 - 1) * np.diagonal(expected) > np.diagonal(allowed))


def test_correlations_of_scores_are_what_the_examples_exemplify() -> None:
    states = ac.limit(recurrent_attention(3)).score_covariance
    correlation = abs(states / scale(states))[~np.eye(3, dtype=bool)]
    assert np.all((correlation > 0.05) & (correlation < 0.9))
    # Of grouped heads only squares are, at finite width: by 2/ν of E p⁴/3 given the inputs.
    grouped = ac.limit(grouped_query_attention(heads=2, groups=1, seq_len=1))
    np.testing.assert_allclose(grouped.score_covariance, np.eye(2), atol=1e-9)
    near, far = ac.limit(positional_attention(3)).score_covariance[0, 1:3]
    assert near > far > 0.01


def test_sizes() -> None:
    assert len(ac.limit(perceptron(5)).lines) == 6
    assert ac.simulate(cross_attention(queries=3, keys=1).at(3), 2).scores.shape == (2, 3)
    assert ac.simulate(grouped_query_attention(6, 3, 2).at(3), 2).scores.shape == (2, 24)
    for name in ("perceptron", "recurrent", "residual_attention", "gated_attention"):
        with pytest.raises(InputError, match="=0: must be at least 1; pass a size"):
            EXAMPLES[name](0)  # type: ignore[call-arg]  # all take a size first, but `EXAMPLES` says none


def test_softmax_weights_add_up_and_gates_do_not() -> None:
    value, low, high = np.ones((4, 2)), np.full((4, 1), -800.0), np.full((4, 1), 800.0)
    np.testing.assert_array_equal(softmax_mix(value, -value, high, low), value)
    np.testing.assert_array_equal(sigmoid_mix(value, value, high, high), 2.0 * value)
    for count in (0, 3):
        with pytest.raises(InputError, match=f"lines={count}: must hold as many values as scores"):
            softmax_mix(*[np.ones((2, 2))] * count)
