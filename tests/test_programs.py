"""Example programs: coverage, text and limit; `simulators/test_draws.py` compares their methods."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import attncheck as ac
from attncheck import InputError
from attncheck.layers.program import Output, Score
from attncheck.layers.program.coverage import CoverageKind
from attncheck.layers.program.mixes import sigmoid_mix, softmax_mix
from attncheck.programs import (
    EXAMPLES,
    cross_attention,
    grouped_query_attention,
    perceptron,
    positional_attention,
    recurrent,
    recurrent_attention,
)

FloatArray = NDArray[np.float64]
# Two-sided level 1e-9 of a z-test.
QUANTILE = 6.1

each_example = pytest.mark.parametrize("name", EXAMPLES)


def second_moments(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return E[v_i v_k] of the columns and its standard error."""
    products = values[:, :, None] * values[:, None, :]
    return products.mean(axis=0), products.std(axis=0) / len(values) ** 0.5


def scale(moments: FloatArray) -> FloatArray:
    """Return √(E v_i² E v_k²)."""
    own = np.sqrt(np.diagonal(moments))
    return np.asarray(own[:, None] * own)


class TestEachExample:
    @each_example
    def test_every_line_is_proved(self, name: str) -> None:
        program = EXAMPLES[name]()
        covered = program.coverage()
        assert covered.has_limit
        assert covered.proved
        for node in program.nodes:
            best = {Score: CoverageKind.SCORE, Output: CoverageKind.OUTPUT}.get(type(node), CoverageKind.NETSOR)
            assert covered.of(node.name).statement is best

    @pytest.mark.sampled
    @each_example
    def test_results_and_scores_approach_the_limit(self, name: str) -> None:
        """Corollary 2: E[y_i y_k] at width n is off by a fraction c/n, |c| < 1 as measured at n = 16; 3 is allowed.

        Proposition 8: E[p_i p_k] at width n is off by at most (1 + 2/n)² - 1 of it, as for p_ii.
        """
        program = EXAMPLES[name]()
        draws = ac.simulate(program.at(64), 10_000, seed=1)
        found, error = second_moments(draws.outputs[:, :, 0])
        limit = ac.simulate(program.at(64), 50_000, seed=2, method="limit")
        expected, theirs = second_moments(limit.outputs[:, :, 0])
        assert np.all(abs(found - expected) < QUANTILE * np.hypot(error, theirs) + 3 / 64 * scale(expected))
        law = ac.limit(program)
        if not law.scores:
            assert draws.scores.shape == (10_000, 0)
            return
        expected = law.score_covariance
        found, error = second_moments(draws.scores)
        allowed = QUANTILE * error + ((1 + 2 / 64) ** 2 - 1) * scale(expected) + law.error
        assert np.all(abs(found - expected) < allowed)
        # Detects an error of a fifth in the standard deviation of W^Q or W^K.
        assert np.all((1.2**2 - 1) * np.diagonal(expected) > np.diagonal(allowed))


class TestWhatTheyExemplify:
    def test_scores_of_correlated_states_are_correlated(self) -> None:
        law = ac.limit(recurrent_attention(3))
        correlation = law.score_covariance / scale(law.score_covariance)
        assert np.all(abs(correlation[~np.eye(3, dtype=bool)]) > 0.05)
        assert np.all(abs(correlation[~np.eye(3, dtype=bool)]) < 0.9)

    def test_scores_of_grouped_heads_are_not(self) -> None:
        """Only their squares are, at finite width: by 2/ν of E p⁴/3 given the inputs."""
        law = ac.limit(grouped_query_attention(heads=2, groups=1, seq_len=1))
        np.testing.assert_allclose(law.score_covariance, np.eye(2), atol=1e-9)

    def test_positions_are_told_apart_by_their_distance(self) -> None:
        law = ac.limit(positional_attention(3))
        near, far = law.score_covariance[0, 1], law.score_covariance[0, 2]
        assert near > far > 0.01

    def test_sizes(self) -> None:
        assert len(ac.limit(perceptron(5)).lines) == 6
        assert ac.simulate(recurrent(4).at(3), 2).outputs.shape == (2, 1, 1)
        assert ac.simulate(cross_attention(queries=3, keys=1).at(3), 2).scores.shape == (2, 3)
        assert ac.simulate(grouped_query_attention(6, 3, 2).at(3), 2).scores.shape == (2, 24)


class TestMixes:
    def test_softmax_weights_add_up_and_gates_do_not(self) -> None:
        value, low, high = np.ones((4, 2)), np.full((4, 1), -800.0), np.full((4, 1), 800.0)
        np.testing.assert_array_equal(softmax_mix(value, -value, high, low), value)
        np.testing.assert_array_equal(sigmoid_mix(value, value, high, high), 2.0 * value)

    @pytest.mark.parametrize("count", [0, 3])
    def test_as_many_scores_as_values(self, count: int) -> None:
        with pytest.raises(InputError, match=f"lines={count}: must hold as many values as scores"):
            softmax_mix(*[np.ones((2, 2))] * count)


@pytest.mark.parametrize("name", ["perceptron", "recurrent", "residual_attention", "gated_attention"])
def test_sizes_are_refused(name: str) -> None:
    # Example functions take sizes; the mapping has parameterless ones.
    with pytest.raises(InputError, match="=0: must be at least 1; pass a size"):
        EXAMPLES[name](0)  # type: ignore[call-arg]  # all take a size first, but `EXAMPLES` says none
