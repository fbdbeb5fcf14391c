"""Normalised inputs: description, methods of one law, computed values, and wrong simulators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck.checks.check import Setting
from attncheck.layers.kernel import image_mean, input_kernel, input_moments
from attncheck.layers.nonlinearity import clip, erf, relu, sigmoid, tanh
from attncheck.layers.norm import normalised, normalised_gram, normalised_with_ones, with_ones

from .conftest import rejected

RMS = ac.AttentionLayer(width=16, seq_len=3, num_heads=2, activation="relu", query_std=1.5, norm="rms")
LAYER = RMS.replace(norm="layer")
NARROW = ac.AttentionLayer(
    width=4, seq_len=4, num_heads=2, head_dim=3, num_kv_heads=1, clip=1.0, position_std=0.5, mask="causal", norm="layer"
)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_normalised_vectors_have_the_gram_matrix_that_theirs_says(norm: Any) -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, 7)) + 0.5
    x[0, 0] = 0.0
    x[1, 1] = 0.1
    made = normalised(norm, x)
    ones = with_ones(norm, x)
    by_formula = normalised_with_ones(norm, ones @ ones.swapaxes(-1, -2) / 7)
    assert np.allclose(made @ made.swapaxes(-1, -2) / 7, by_formula, atol=1e-13)
    assert np.array_equal(made[0, 0], np.zeros(7))
    assert np.array_equal(made[1, 1], np.full(7, 0.0 if norm == "layer" else 1.0))
    assert normalised(None, x) is x


def test_means_of_nonlinearities() -> None:
    z = np.linspace(-10.0, 10.0, 20_001)
    bell = np.exp(-0.5 * z**2)
    for phi in (relu(), tanh(), erf(), clip(1.0)):
        mean = bell @ phi(1.3 * z) / bell.sum()
        assert image_mean(phi, np.array([1.69]))[0] == pytest.approx(mean, abs=1e-6)
    with pytest.raises(InputError, match="sigmoid"):
        image_mean(sigmoid(), np.ones(1))


def test_layer_norm_and_rms_norm_have_other_limits_under_relu_and_one_for_odd_phi() -> None:
    """`properties/theory/test_norms.py` tests by how much they differ at finite width."""
    assert np.allclose(input_kernel(LAYER.inputs).matrix, np.eye(3), atol=1e-12)
    assert np.allclose(input_kernel(RMS.inputs).matrix, np.eye(3) + (1 - np.eye(3)) / np.pi, atol=1e-12)
    assert abs(ac.limit(RMS).variance() / ac.limit(LAYER).variance() - 1) > 0.1
    odd = RMS.replace(activation="tanh", num_heads=1)
    assert np.array_equal(input_kernel(odd.inputs).matrix, input_kernel(odd.replace(norm="layer").inputs).matrix)


def test_the_error_of_the_kernel_bounds_what_an_error_of_the_moments_makes() -> None:
    layer = LAYER.replace(activation="tanh", input_correlation=0.5)
    kernel, means = input_moments(layer.inputs)
    off = normalised_gram("layer", kernel.matrix + kernel.error * np.array([[1, -1, 1], [-1, 1, 1], [1, 1, -1]]), means)
    assert np.abs(off - input_kernel(layer.inputs).matrix).max() <= input_kernel(layer.inputs).error


def test_the_tangent_kernel_reads_normalised_inputs() -> None:
    layer = LAYER.replace(width=6, activation="relu")
    one, longer = (ac.tangent_kernel(each, 50, seed=0).parts for each in (layer, layer.replace(input_std=3.0)))
    np.testing.assert_allclose(one, longer, rtol=1e-9, atol=1e-12)


def _misread(**changes: Any) -> Any:
    def subject(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        return ac.simulate(layer.replace(**changes), size, int(rng.integers(2**31)), coordinates=2).as_dict()

    return subject


def test_at_one_limit_layer_norm_shows_by_order_one_over_n_alone() -> None:
    odd = RMS.replace(width=4, activation="tanh")
    assert rejected(_misread(norm="layer"), odd)
    assert not rejected(_misread(), odd)


def test_what_is_of_inputs_that_are_not_normalised_says_so() -> None:
    assert Setting(NARROW, frozenset()).input_rank == 3
    assert Setting(RMS.replace(width=2), frozenset()).input_rank == 2
    report = ac.check(_misread(), RMS, profile="smoke", seed=0)
    reasons = {result.check: result.reason for result in report.results if not result.p_values}
    assert reasons["inputs.tail_4"] == "the inputs are normalised"
